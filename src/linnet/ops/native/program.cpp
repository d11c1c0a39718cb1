// The operations of a decoding step, run one after another by the same threads, in one call.
//
// In a step of a small model, waking threads for every operation would take longer than the operations. Here they are
// woken once and wait for each other at a barrier. Every operation is one of `functions.hpp`, which determines its share
// of the work by the thread's `team`. `ops.native.program` records operations.

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <thread>
#endif

#include <atomic>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "functions.hpp"
#include "vectors.hpp"

namespace {

constexpr int64_t MAX_ARGUMENTS = 14;
constexpr int PATIENCE = 1 << 12;  // tests of a barrier, some tens of microseconds, before a thread sleeps

// A number, an address or the bits of a float32; and its steps by token and by position.
struct Argument {
  int64_t value, by_token, by_position;
};

struct Operation {
  int64_t function;
  Argument arguments[MAX_ARGUMENTS];
};

template <typename T>
T as(int64_t value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    T number;
    std::memcpy(&number, &value, sizeof number);
    return number;
  } else {
    return static_cast<T>(value);
  }
}

template <typename... Types, size_t... places>
void call(void (*function)(Types...), const int64_t* values, std::index_sequence<places...>) {
  function(as<Types>(values[places])...);
}

template <auto function>
struct Called;

template <typename... Types, void (*function)(Types...)>
struct Called<function> {
  static_assert(sizeof...(Types) <= MAX_ARGUMENTS);
  static void with(const int64_t* values) { call(function, values, std::index_sequence_for<Types...>{}); }
};

struct Named {
  const char* name;
  void (*with)(const int64_t*);
};

constexpr Named FUNCTIONS[] = {
    {"linnet_float32_rows", Called<linnet_float32_rows>::with},
    {"linnet_bfloat16_rows", Called<linnet_bfloat16_rows>::with},
    {"linnet_int8_rows", Called<linnet_int8_rows>::with},
    {"linnet_int4_rows", Called<linnet_int4_rows>::with},
    {"linnet_float32_matrix", Called<linnet_float32_matrix>::with},
    {"linnet_bfloat16_matrix", Called<linnet_bfloat16_matrix>::with},
    {"linnet_int8_matrix", Called<linnet_int8_matrix>::with},
    {"linnet_int4_matrix", Called<linnet_int4_matrix>::with},
    {"linnet_attention_row", Called<linnet_attention_row>::with},
    {"linnet_attention_past", Called<linnet_attention_past>::with},
    {"linnet_apply_operator", Called<linnet_apply_operator>::with},
    {"linnet_rms_norm", Called<linnet_rms_norm>::with},
    {"linnet_layer_norm", Called<linnet_layer_norm>::with},
    {"linnet_rotate", Called<linnet_rotate>::with},
    {"linnet_activation", Called<linnet_activation>::with},
    {"linnet_glu", Called<linnet_glu>::with},
    {"linnet_scale_add", Called<linnet_scale_add>::with},
};

// The last thread to arrive releases all others. A thread that has waited long sleeps: on a busy machine the last one
// may be waiting for this very processor.
class Barrier {
 public:
  void wait(int64_t threads) {
    const int32_t round = round_.load(std::memory_order_acquire);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      waiting_.store(0, std::memory_order_relaxed);
      round_.store(round + 1);
      if (sleeping_.load() > 0) wake();
      return;
    }
    for (int looks = 0; looks < PATIENCE; ++looks) {
      if (round_.load(std::memory_order_acquire) != round) return;
      pause();
    }
    sleeping_.fetch_add(1);
    while (round_.load() == round) sleep(round);
    sleeping_.fetch_sub(1);
  }

 private:
  static void pause() {
#if defined(LINNET_AVX2)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

#ifdef __linux__
  void sleep(int32_t round) { syscall(SYS_futex, &round_, FUTEX_WAIT_PRIVATE, round, nullptr, nullptr, 0); }
  void wake() { syscall(SYS_futex, &round_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }
#else
  void sleep(int32_t) { std::this_thread::yield(); }
  void wake() {}
#endif

  alignas(64) std::atomic<int64_t> waiting_{0};
  alignas(64) std::atomic<int32_t> round_{0};
  std::atomic<int32_t> sleeping_{0};
};

void run(const Operation& operation, int64_t token, int64_t position) {
  int64_t values[MAX_ARGUMENTS];
  for (int64_t n = 0; n < MAX_ARGUMENTS; ++n) {
    const Argument& of = operation.arguments[n];
    values[n] = of.value + token * of.by_token + position * of.by_position;
  }
  FUNCTIONS[operation.function].with(values);
}

}  // namespace

extern "C" {

// The number of a function in an operation; -1 for an unknown name.
int64_t linnet_function_index(const char* name) {
  constexpr int64_t count = sizeof FUNCTIONS / sizeof *FUNCTIONS;
  for (int64_t n = 0; n < count; ++n)
    if (std::strcmp(FUNCTIONS[n].name, name) == 0) return n;
  return -1;
}

void linnet_run(const void* operations, int64_t count, int64_t token, int64_t position, int threads) {
  const auto* const all = static_cast<const Operation*>(operations);
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  {
    team = {omp_get_thread_num(), omp_get_num_threads()};
    for (int64_t n = 0; n < count; ++n) {
      if (n > 0) barrier.wait(team.all);
      run(all[n], token, position);
    }
    team = {};
  }
}

}  // extern "C"
