// Products of rows with matrices of 32, 16 and 8 bits. Several rows are multiplied with the same weights together, which
// are read and unpacked once for all of them; floating-point ones also with several outputs, for which a row is read
// once. Sums of floating-point numbers are in the same order whatever the sizes of a tile are, so that a row has the same
// result alone and among others.

#pragma once

#include <vector>

#include "wide.hpp"

namespace {

constexpr int SUMS = 4;  // vectors of an output with independent sums
constexpr int64_t RUN_OF_SUMS = SUMS * LANES;

// How weights of a format are read: a run as four vectors of 256 bits or two of 512, and after the last run as many as
// `HALVES` half vectors. Rows have their numbers in the order of these vectors.
struct Float32 {
  using Number = float;
  static constexpr int HALVES = 1;
  static constexpr int64_t REST = HALVES * LANES;

  static float number(float weight) { return weight; }

  static void run(const float* weights, __m256 (&v)[SUMS]) {
    for (int n = 0; n < SUMS; ++n) v[n] = _mm256_loadu_ps(weights + n * LANES);
  }
  static void rest(const float* weights, __m256 (&v)[HALVES]) { v[0] = _mm256_loadu_ps(weights); }
#ifdef LINNET_AVX512
  static void run(const float* weights, Real (&v)[2]) {
    v[0] = real_at(weights);
    v[1] = real_at(weights + WIDE);
  }
  static void rest(const float* weights, Real (&v)[HALVES]) { v[0] = _mm512_maskz_loadu_ps(0xff, weights); }
#endif
};

// Weights at even indices are the lower halves of 32 bits, those at odd indices the upper ones.
struct Bfloat16 {
  using Number = uint16_t;
  static constexpr int HALVES = 2;
  static constexpr int64_t REST = HALVES * LANES;

  static float number(uint16_t weight) { return float_of_bfloat16(weight); }

  static void split(const uint16_t* weights, __m256& even, __m256& odd) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
  }
  static void run(const uint16_t* weights, __m256 (&v)[SUMS]) {
    split(weights, v[0], v[2]);
    split(weights + 2 * LANES, v[1], v[3]);
  }
  static void rest(const uint16_t* weights, __m256 (&v)[HALVES]) { split(weights, v[0], v[1]); }
#ifdef LINNET_AVX512
  static void split(Whole pairs, Real& even, Real& odd) {
    even = as_real(shifted_left(pairs, 16));
    odd = as_real(both(pairs, everywhere(static_cast<int32_t>(0xffff0000u))));
  }
  static void run(const uint16_t* weights, Real (&v)[2]) { split(whole_at(weights), v[0], v[1]); }
  static void rest(const uint16_t* weights, Real (&v)[HALVES]) {
    split(_mm512_maskz_loadu_epi32(0xff, weights), v[0], v[1]);
  }
#endif

  // A row in the order in which weights are read; the numbers after the last vector stay where they are.
  static void order(const float* x, int64_t inputs, float* ordered) {
    int64_t i = 0;
    const auto split_run = [&](int64_t half) {
      for (int64_t k = 0; k < half; ++k) {
        ordered[i + k] = x[i + 2 * k];
        ordered[i + half + k] = x[i + 2 * k + 1];
      }
      i += 2 * half;
    };
    while (i + RUN_OF_SUMS <= inputs) split_run(2 * LANES);
    if (i + REST <= inputs) split_run(LANES);
    std::copy(x + i, x + inputs, ordered + i);
  }
};

// An output of ROWS rows.
template <typename Format, int ROWS>
inline void set_output(const float* x, int64_t row, int64_t inputs, const typename Format::Number* weights,
                       int64_t output, const Result& result) {
  weights += output * inputs;
  x += row * inputs;
  __m256 sums[ROWS][SUMS];
  for (auto& of_row : sums)
    for (__m256& sum : of_row) sum = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + RUN_OF_SUMS <= inputs; i += RUN_OF_SUMS) {
    __m256 v[SUMS];
    Format::run(weights + i, v);
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < SUMS; ++n)
        sums[r][n] = _mm256_fmadd_ps(v[n], _mm256_loadu_ps(x + r * inputs + i + n * LANES), sums[r][n]);
  }
  for (; i + Format::REST <= inputs; i += Format::REST) {
    __m256 v[Format::HALVES];
    Format::rest(weights + i, v);
    for (int r = 0; r < ROWS; ++r)
      for (int n = 0; n < Format::HALVES; ++n)
        sums[r][2 * n] = _mm256_fmadd_ps(v[n], _mm256_loadu_ps(x + r * inputs + i + n * LANES), sums[r][2 * n]);
  }
  for (int r = 0; r < ROWS; ++r) {
    for (int n = 1; n < SUMS; ++n) sums[r][0] = _mm256_add_ps(sums[r][0], sums[r][n]);
    float found = sum_of(sums[r][0]);
    for (int64_t rest = i; rest < inputs; ++rest) found += Format::number(weights[rest]) * x[r * inputs + rest];
    result.set(row + r, output, found);
  }
}

// An output of all rows, whose weights stay in the cache for as long as the rows are read.
template <typename Format>
inline void set_output(const float* x, int64_t rows, int64_t inputs, const typename Format::Number* weights,
                       int64_t output, const Result& result) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2) set_output<Format, 2>(x, r, inputs, weights, output, result);
  if (r < rows) set_output<Format, 1>(x, r, inputs, weights, output, result);
}

#ifdef LINNET_AVX512
constexpr int OUTPUTS = 4;  // of a tile; with three rows it has 24 sums in 32 registers

// The sums of four outputs, each of two vectors whose halves are the four of `set_output`, in its order: what that adds
// up for one output after the other is added up for all of them together.
inline __m128 sums_of(const Real (&sums)[OUTPUTS][2]) {
  Real of_pairs[OUTPUTS / 2];  // each half of one output
#pragma GCC unroll 2
  for (int pair = 0; pair < OUTPUTS / 2; ++pair) {
    const auto &one = sums[2 * pair], &other = sums[2 * pair + 1];
    const auto lower = [&](int n) { return _mm512_shuffle_f32x4(one[n], other[n], 0x44); };
    const auto upper = [&](int n) { return _mm512_shuffle_f32x4(one[n], other[n], 0xee); };
    of_pairs[pair] = sum(sum(sum(lower(0), upper(0)), lower(1)), upper(1));
  }
  Real found = sum(_mm512_shuffle_f32x4(of_pairs[0], of_pairs[1], 0x88),
                   _mm512_shuffle_f32x4(of_pairs[0], of_pairs[1], 0xdd));
  found = sum(found, _mm512_permute_ps(found, 0x4e));
  found = sum(found, _mm512_permute_ps(found, 0xb1));
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, found));
}

template <typename Number>
inline void fetch_run(const Number* weights) {
  for (int64_t at = 0; at < RUN_OF_SUMS; at += 64 / static_cast<int64_t>(sizeof(Number)))
    _mm_prefetch(reinterpret_cast<const char*>(weights + at), _MM_HINT_T0);
}

// A tile of ROWS rows and four outputs. fetches: whether it also fetches the weights of the next four outputs, which are
// read in four places at a time, where the processor does not expect them.
template <typename Format, int ROWS, bool fetches>
inline void set_tile(const float* x, int64_t row, int64_t inputs, const typename Format::Number* weights,
                     int64_t output, const Result& result) {
  weights += output * inputs;
  x += row * inputs;
  Real sums[ROWS][OUTPUTS][2];
  for (auto& of_row : sums)
    for (auto& of_output : of_row) of_output[0] = of_output[1] = zero();
  int64_t i = 0;
  for (; i + RUN_OF_SUMS <= inputs; i += RUN_OF_SUMS) {
    Real of_rows[ROWS][2];
#pragma GCC unroll 3
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        of_rows[r][n] = real_at(x + r * inputs + i + n * WIDE);
        once(of_rows[r][n]);
      }
#pragma GCC unroll 4
    for (int o = 0; o < OUTPUTS; ++o) {
      Real v[2];
      Format::run(weights + o * inputs + i, v);
      if (fetches) fetch_run(weights + OUTPUTS * inputs + OUTPUTS * i + o * RUN_OF_SUMS);
#pragma GCC unroll 3
      for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int n = 0; n < 2; ++n) sums[r][o][n] = with_product(sums[r][o][n], v[n], of_rows[r][n]);
    }
  }
  for (; i + Format::REST <= inputs; i += Format::REST)
#pragma GCC unroll 4
    for (int o = 0; o < OUTPUTS; ++o) {
      Real v[Format::HALVES];
      Format::rest(weights + o * inputs + i, v);
#pragma GCC unroll 3
      for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int n = 0; n < Format::HALVES; ++n) {
          const Real of_row = _mm512_maskz_loadu_ps(0xff, x + r * inputs + i + n * LANES);
          sums[r][o][n] = _mm512_mask3_fmadd_ps(v[n], of_row, sums[r][o][n], 0xff);
        }
    }
#pragma GCC unroll 3
  for (int r = 0; r < ROWS; ++r) {
    __m128 found = sums_of(sums[r]);
    if (i < inputs) {
      alignas(16) float each[OUTPUTS];
      _mm_store_ps(each, found);
      for (int64_t rest = i; rest < inputs; ++rest)
        for (int o = 0; o < OUTPUTS; ++o) each[o] += Format::number(weights[o * inputs + rest]) * x[r * inputs + rest];
      found = _mm_load_ps(each);
    }
    result.set(row + r, output, found);
  }
}

// Multiplies up to three rows from `row` on with the outputs from `first` to `end`, a multiple of four; returns the
// number of rows.
template <typename Format, bool fetches>
inline int64_t set_rows(const float* x, int64_t row, int64_t rows, int64_t inputs,
                        const typename Format::Number* weights, int64_t first, int64_t end, const Result& result) {
  const int64_t count = std::min<int64_t>(rows - row, 3);
  for (int64_t output = first; output < end; output += OUTPUTS) {
    if (count == 3) set_tile<Format, 3, fetches>(x, row, inputs, weights, output, result);
    if (count == 2) set_tile<Format, 2, fetches>(x, row, inputs, weights, output, result);
    if (count == 1) set_tile<Format, 1, fetches>(x, row, inputs, weights, output, result);
  }
  return count;
}
#endif

constexpr int64_t BLOCK = 16;  // outputs that meet some rows before the next rows

// All outputs of all rows; one output after the other, as the memory is read, where there is one row.
template <typename Format>
void rows_of_floats(const float* x, int64_t rows, int64_t inputs, const typename Format::Number* weights,
                    const Result& result, int threads) {
#ifdef LINNET_AVX512
  if (rows > 1)
    return divided((result.outputs + BLOCK - 1) / BLOCK, threads, [&](int64_t block) {
      const int64_t first = block * BLOCK, end = std::min(first + BLOCK, result.outputs);
      const int64_t in_tiles = first + (end - first) / OUTPUTS * OUTPUTS;
      int64_t row = set_rows<Format, true>(x, 0, rows, inputs, weights, first, in_tiles, result);
      while (row < rows) row += set_rows<Format, false>(x, row, rows, inputs, weights, first, in_tiles, result);
      for (int64_t o = in_tiles; o < end; ++o) set_output<Format>(x, rows, inputs, weights, o, result);
    });
#endif
  divided(result.outputs, threads, [&](int64_t o) { set_output<Format>(x, rows, inputs, weights, o, result); });
}

// The last weights of an output, fewer than a vector, padded with zeros.
template <typename Number>
inline Whole rest_of(const Number* weights, int64_t count) {
  Number rest[sizeof(Whole) / sizeof(Number)] = {};
  std::memcpy(rest, weights, count * sizeof(Number));
  return whole_at(rest);
}

// Digits are made unsigned by adding 64; 64 times the sum of an output's weights is subtracted again.
struct Int8Tile {
  static constexpr int64_t RUN = 4 * WIDE;
  static constexpr int MORE = BASE / 2;
  static constexpr int ROWS = 4;  // at most: with more, compilers keep sums in memory

  static int64_t bytes(int rows, int64_t width) { return (width + RUN - 1) / RUN * RUN * 2 * rows; }

  static void fill(const std::vector<Fixed>& fixed, int64_t first, int rows, int64_t width, uint8_t* tile) {
    for (int r = 0; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) {
        uint8_t* const run = tile + (i / RUN * rows + r) * 2 * RUN + i % RUN;
        run[0] = static_cast<uint8_t>(fixed[first + r].high[i] + MORE);
        run[RUN] = static_cast<uint8_t>(fixed[first + r].low[i] + MORE);
      }
  }

  template <int rows>
  struct Of {
    static void call(const int8_t* weights, const uint8_t* x, int64_t width, float* out) {
      Whole high[rows], low[rows], more = nothing();
      for (int r = 0; r < rows; ++r) high[r] = low[r] = nothing();
      for (int64_t i = 0; i < width; i += RUN, x += 2 * rows * RUN) {
        const Whole numbers = i + RUN <= width ? whole_at(weights + i) : rest_of(weights + i, width - i);
        more = with_products(more, every_byte(MORE), numbers);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
          high[r] = with_products(high[r], whole_at(x + 2 * r * RUN), numbers);
          low[r] = with_products(low[r], whole_at(x + (2 * r + 1) * RUN), numbers);
        }
      }
      const int32_t added = total_of(more);
      int32_t of_high[rows], of_low[rows];
      totals_of(high, of_high);
      totals_of(low, of_low);
      for (int r = 0; r < rows; ++r)
        out[r] = static_cast<float>(of_high[r] - added) * BASE + static_cast<float>(of_low[r] - added);
    }
  };
};

inline void int8_rows_by_tiles(const std::vector<Fixed>& fixed, int64_t rows, const int8_t* weights, int64_t width,
                               const uint16_t* scales, const Result& result, int threads) {
  constexpr int MOST = Int8Tile::ROWS;
  const int64_t tiles = (rows + MOST - 1) / MOST, of_tile = Int8Tile::bytes(MOST, width);
  thread_local Scratch<uint8_t> kept;
  uint8_t* const digits = kept.room(tiles * of_tile);
  const auto count_of = [&](int64_t tile) { return static_cast<int>(std::min<int64_t>(MOST, rows - tile * MOST)); };
  for (int64_t t = 0; t < tiles; ++t) Int8Tile::fill(fixed, t * MOST, count_of(t), width, digits + t * of_tile);
  divided((result.outputs + BLOCK - 1) / BLOCK, threads, [&](int64_t block) {
    const int64_t first = block * BLOCK, end = std::min(first + BLOCK, result.outputs);
    for (int64_t t = 0; t < tiles; ++t) {
      const int count = count_of(t);
      const auto meet = for_rows<Int8Tile::Of, MOST>(count);
      for (int64_t o = first; o < end; ++o) {
        const float scale = float_of_bfloat16(scales[o]);
        float out[MOST];
        meet(weights + o * width, digits + t * of_tile, width, out);
        for (int r = 0; r < count; ++r) result.set(t * MOST + r, o, out[r] * (fixed[t * MOST + r].step * scale));
      }
    }
  });
}

}  // namespace
