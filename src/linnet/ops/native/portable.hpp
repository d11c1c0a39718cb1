// The vector instructions that vectors.hpp and its users need, for processors without AVX2: the same names and results,
// by the vector types of GCC and clang. On 64-bit ARM the compiler turns them into NEON instructions; only the products
// of bytes (products.hpp) are written for NEON. Multiply-add rounds once everywhere, so results hardly differ.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

typedef float __m256 __attribute__((vector_size(32)));
typedef int32_t __m256i __attribute__((vector_size(32)));
typedef uint16_t __m128i __attribute__((vector_size(16)));  // eight numbers of 16 bits are all that is loaded so

namespace portable {

typedef uint32_t Unsigned32 __attribute__((vector_size(32)));
typedef uint16_t Unsigned16 __attribute__((vector_size(32)));
typedef int8_t Signed8 __attribute__((vector_size(32)));

template <typename To, typename From>
inline To bits_of(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// A vector whose element i is `element(i)`; loops of this kind become vector instructions.
template <typename Vector, int count, typename Element>
inline Vector each(const Element& element) {
  Vector made;
  for (int i = 0; i < count; ++i) made[i] = element(i);
  return made;
}

}  // namespace portable

constexpr int _MM_FROUND_TO_NEAREST_INT = 0;

inline __m256 _mm256_set1_ps(float x) { return __m256{x, x, x, x, x, x, x, x}; }
inline __m256 _mm256_setzero_ps() { return __m256{}; }
inline __m256 _mm256_loadu_ps(const float* from) {
  __m256 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void _mm256_storeu_ps(float* to, __m256 v) { std::memcpy(to, &v, sizeof v); }
inline __m256 _mm256_add_ps(__m256 a, __m256 b) { return a + b; }
inline __m256 _mm256_sub_ps(__m256 a, __m256 b) { return a - b; }
inline __m256 _mm256_mul_ps(__m256 a, __m256 b) { return a * b; }
inline __m256 _mm256_div_ps(__m256 a, __m256 b) { return a / b; }
inline __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c) {
  return portable::each<__m256, 8>([&](int i) { return __builtin_fmaf(a[i], b[i], c[i]); });
}
inline __m256 _mm256_fnmadd_ps(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(-a, b, c); }
inline __m256 _mm256_min_ps(__m256 a, __m256 b) {
  return portable::each<__m256, 8>([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}
inline __m256 _mm256_max_ps(__m256 a, __m256 b) {
  return portable::each<__m256, 8>([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
inline __m256 _mm256_round_ps(__m256 a, int) {
  return portable::each<__m256, 8>([&](int i) { return __builtin_nearbyintf(a[i]); });
}

inline __m256i _mm256_setzero_si256() { return __m256i{}; }
inline __m256i _mm256_set1_epi32(int32_t x) { return __m256i{x, x, x, x, x, x, x, x}; }
inline __m256i _mm256_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h) {
  return __m256i{a, b, c, d, e, f, g, h};
}
inline __m256i _mm256_set1_epi8(int8_t x) {
  return _mm256_set1_epi32(static_cast<int32_t>(0x01010101u * static_cast<uint8_t>(x)));
}
inline __m256i _mm256_loadu_si256(const void* from) {  // not a pointer to vectors, which would be aligned
  __m256i v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline __m128i _mm_loadu_si128(const void* from) {
  __m128i v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline __m256i _mm256_add_epi32(__m256i a, __m256i b) { return a + b; }
inline __m256i _mm256_and_si256(__m256i a, __m256i b) { return a & b; }
inline __m256i _mm256_slli_epi32(__m256i a, int bits) {
  return portable::bits_of<__m256i>(portable::bits_of<portable::Unsigned32>(a) << bits);
}
inline __m256i _mm256_srli_epi16(__m256i a, int bits) {
  return portable::bits_of<__m256i>(portable::bits_of<portable::Unsigned16>(a) >> bits);
}
inline __m256i _mm256_cmpgt_epi32(__m256i a, __m256i b) {
  return portable::each<__m256i, 8>([&](int i) { return a[i] > b[i] ? -1 : 0; });
}
inline __m256i _mm256_abs_epi8(__m256i a) {
  const auto bytes = portable::bits_of<portable::Signed8>(a);
  return portable::bits_of<__m256i>(portable::each<portable::Signed8, 32>(
      [&](int i) { return static_cast<int8_t>(bytes[i] < 0 ? -bytes[i] : bytes[i]); }));
}
inline __m256i _mm256_sign_epi8(__m256i a, __m256i b) {
  const auto bytes = portable::bits_of<portable::Signed8>(a), signs = portable::bits_of<portable::Signed8>(b);
  return portable::bits_of<__m256i>(portable::each<portable::Signed8, 32>([&](int i) {
    return static_cast<int8_t>(signs[i] < 0 ? -bytes[i] : signs[i] > 0 ? bytes[i] : 0);
  }));
}

inline __m256 _mm256_castsi256_ps(__m256i a) { return portable::bits_of<__m256>(a); }
inline __m256i _mm256_castps_si256(__m256 a) { return portable::bits_of<__m256i>(a); }
inline __m256 _mm256_cvtepi32_ps(__m256i a) {
  return portable::each<__m256, 8>([&](int i) { return static_cast<float>(a[i]); });
}
inline __m256i _mm256_cvtps_epi32(__m256 a) {  // of whole numbers
  return portable::each<__m256i, 8>([&](int i) { return static_cast<int32_t>(a[i]); });
}
inline __m256i _mm256_cvtepu16_epi32(__m128i a) {
  return portable::each<__m256i, 8>([&](int i) { return static_cast<int32_t>(a[i]); });
}

inline __m256 _mm256_and_ps(__m256 a, __m256 b) {
  return _mm256_castsi256_ps(_mm256_castps_si256(a) & _mm256_castps_si256(b));
}
inline __m256 _mm256_andnot_ps(__m256 a, __m256 b) {
  return _mm256_castsi256_ps(~_mm256_castps_si256(a) & _mm256_castps_si256(b));
}
inline __m256 _mm256_or_ps(__m256 a, __m256 b) {
  return _mm256_castsi256_ps(_mm256_castps_si256(a) | _mm256_castps_si256(b));
}
inline __m256 _mm256_blendv_ps(__m256 a, __m256 b, __m256 sign) {
  const __m256i bits = _mm256_castps_si256(sign);
  return portable::each<__m256, 8>([&](int i) { return bits[i] < 0 ? b[i] : a[i]; });
}
inline __m256 _mm256_maskload_ps(const float* from, __m256i mask) {
  return portable::each<__m256, 8>([&](int i) { return mask[i] < 0 ? from[i] : 0.0f; });
}
inline void _mm256_maskstore_ps(float* to, __m256i mask, __m256 v) {
  for (int i = 0; i < 8; ++i)
    if (mask[i] < 0) to[i] = v[i];
}
