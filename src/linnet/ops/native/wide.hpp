// The widest vectors of the processor, with the same names for all: 512 bits where its instructions also add up products
// of bytes, else 256 bits.

#pragma once

#include <cstring>
#include <utility>

#include "products.hpp"

namespace {

#if defined(LINNET_AVX2) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define LINNET_AVX512 1
constexpr int64_t WIDE = 16;  // float32 numbers of a vector
constexpr int TILE = 8;       // rows of a tile at most: three sums of each are in registers
using Whole = __m512i;
using Real = __m512;
inline Whole nothing() { return _mm512_setzero_si512(); }
inline Real zero() { return _mm512_setzero_ps(); }
inline Whole everywhere(int32_t number) { return _mm512_set1_epi32(number); }
inline Whole every_byte(int8_t number) { return _mm512_set1_epi8(number); }
inline Whole whole_at(const void* place) { return _mm512_loadu_si512(place); }
inline Real real_at(const float* place) { return _mm512_loadu_ps(place); }
inline void keep(float* place, Real numbers) { _mm512_storeu_ps(place, numbers); }
inline Whole both(Whole one, Whole other) { return _mm512_and_si512(one, other); }
inline Whole shifted_right(Whole sixteens, int bits) { return _mm512_srli_epi16(sixteens, bits); }
inline Whole shifted_left(Whole numbers, int bits) { return _mm512_slli_epi32(numbers, bits); }
inline Whole sum(Whole one, Whole other) { return _mm512_add_epi32(one, other); }
inline Real sum(Real one, Real other) { return _mm512_add_ps(one, other); }
inline Real product(Real one, Real other) { return _mm512_mul_ps(one, other); }
inline Real with_product(Real sum, Real one, Real other) { return _mm512_fmadd_ps(one, other, sum); }
inline Real real_of(Whole numbers) { return _mm512_cvtepi32_ps(numbers); }
inline Real as_real(Whole bits) { return _mm512_castsi512_ps(bits); }
inline Real everywhere(float number) { return _mm512_set1_ps(number); }
inline Whole with_products(Whole sum, Whole unsigned_bytes, Whole signed_bytes) {
  return _mm512_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
}
inline float total_of(Real numbers) {
  const __m256 upper = _mm512_castps512_ps256(_mm512_shuffle_f32x4(numbers, numbers, 0xee));
  return sum_of(_mm256_add_ps(_mm512_castps512_ps256(numbers), upper));
}
inline int32_t total_of(Whole numbers) {
  return sum_of(_mm256_add_epi32(_mm512_castsi512_si256(numbers), _mm512_extracti64x4_epi64(numbers, 1)));
}
#else
constexpr int64_t WIDE = 8;
constexpr int TILE = 4;
using Whole = __m256i;
using Real = __m256;
inline Whole nothing() { return _mm256_setzero_si256(); }
inline Real zero() { return _mm256_setzero_ps(); }
inline Whole everywhere(int32_t number) { return _mm256_set1_epi32(number); }
inline Whole every_byte(int8_t number) { return _mm256_set1_epi8(number); }
inline Whole whole_at(const void* place) { return _mm256_loadu_si256(static_cast<const __m256i*>(place)); }
inline Real real_at(const float* place) { return _mm256_loadu_ps(place); }
inline void keep(float* place, Real numbers) { _mm256_storeu_ps(place, numbers); }
inline Whole both(Whole one, Whole other) { return _mm256_and_si256(one, other); }
inline Whole shifted_right(Whole sixteens, int bits) { return _mm256_srli_epi16(sixteens, bits); }
inline Whole shifted_left(Whole numbers, int bits) { return _mm256_slli_epi32(numbers, bits); }
inline Whole sum(Whole one, Whole other) { return _mm256_add_epi32(one, other); }
inline Real sum(Real one, Real other) { return _mm256_add_ps(one, other); }
inline Real product(Real one, Real other) { return _mm256_mul_ps(one, other); }
inline Real with_product(Real sum, Real one, Real other) { return _mm256_fmadd_ps(one, other, sum); }
inline Real real_of(Whole numbers) { return _mm256_cvtepi32_ps(numbers); }
inline Real as_real(Whole bits) { return _mm256_castsi256_ps(bits); }
inline Real everywhere(float number) { return _mm256_set1_ps(number); }
inline float total_of(Real numbers) { return sum_of(numbers); }
inline int32_t total_of(Whole numbers) { return sum_of(numbers); }
#endif

// Memory that is reused from call to call. It begins with a cache line: vectors that cross one take twice as long to load.
template <typename Number>
class Scratch {
 public:
  Number* room(int64_t count) {
    kept.resize(count + LINE / sizeof(Number));
    const auto address = reinterpret_cast<uintptr_t>(kept.data());
    return reinterpret_cast<Number*>((address + LINE - 1) / LINE * LINE);
  }

 private:
  static constexpr size_t LINE = 64;
  std::vector<Number> kept;
};

// Keeps numbers that were loaded in a register: otherwise the compiler loads them again for each use.
template <typename Vector>
inline void once(Vector& numbers) {
#ifdef LINNET_AVX512
  asm("" : "+v"(numbers));
#endif
}

// The total of each of several vectors; those of four are added up together, which takes half of the instructions.
template <int count>
inline void totals_of(const Whole (&numbers)[count], int32_t (&totals)[count]) {
  int n = 0;
#ifdef LINNET_AVX512
  const auto halved = [](Whole one, Whole other) {  // lanes of 128 bits: two of each
    return sum(_mm512_shuffle_i32x4(one, other, 0x44), _mm512_shuffle_i32x4(one, other, 0xee));
  };
#pragma GCC unroll 2
  for (; n + 4 <= count; n += 4) {
    const Whole first = halved(numbers[n], numbers[n + 1]), second = halved(numbers[n + 2], numbers[n + 3]);
    Whole found = sum(_mm512_shuffle_i32x4(first, second, 0x88), _mm512_shuffle_i32x4(first, second, 0xdd));
    found = sum(found, _mm512_shuffle_epi32(found, _MM_PERM_BADC));
    found = sum(found, _mm512_shuffle_epi32(found, _MM_PERM_CDAB));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(totals + n),
                     _mm512_castsi512_si128(_mm512_maskz_compress_epi32(0x1111, found)));
  }
#endif
  for (; n < count; ++n) totals[n] = total_of(numbers[n]);
}

// `Of<rows>::call` for a number of rows from 1 to `TILE`.
template <template <int> class Of, int... less>
auto for_rows(int rows, std::integer_sequence<int, less...>) {
  constexpr decltype(&Of<1>::call) each[] = {Of<less + 1>::call...};
  return each[rows - 1];
}

template <template <int> class Of, int most = TILE>
auto for_rows(int rows) {
  return for_rows<Of>(rows, std::make_integer_sequence<int, most>{});
}

}  // namespace
