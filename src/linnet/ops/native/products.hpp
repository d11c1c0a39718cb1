// Common parts of products with a matrix: where results are written, and rows in fixed point.
//
// A row that is multiplied with weights of 8 or 4 bits is represented by two digits of 7 bits: byte times byte is the
// fastest product there is, and sums of integers are exact, so the result of a row is the same on every processor, with
// any number of threads, and whatever the other rows are.

#pragma once

#include <algorithm>
#include <vector>

#include "vectors.hpp"

#if !defined(LINNET_AVX2) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

constexpr int64_t BYTES = 32;       // of a vector
constexpr float SMALLEST = 1e-30f;  // a row without a larger element counts as zeros
constexpr float LARGEST = 8127.0f;  // stands for a row's largest element: 63 * 128 + 63
constexpr int BASE = 128;           // of the two digits

struct Result {
  const float *bias, *added;  // either may be null
  float* out;
  int64_t outputs;

  void set(int64_t row, int64_t output, float value) const {
    const int64_t place = row * outputs + output;
    out[place] = value + (bias ? bias[output] : 0.0f) + (added ? added[place] : 0.0f);
  }

#ifdef LINNET_AVX2
  // Four adjacent outputs.
  void set(int64_t row, int64_t output, __m128 values) const {
    const int64_t place = row * outputs + output;
    values = _mm_add_ps(values, bias ? _mm_loadu_ps(bias + output) : _mm_setzero_ps());
    _mm_storeu_ps(out + place, _mm_add_ps(values, added ? _mm_loadu_ps(added + place) : _mm_setzero_ps()));
  }
#endif
};

// Eight sums of integers, each plus four products of bytes. The unsigned bytes are at most 127, so that two products fit
// into 16 bits, and NEON may treat them as signed.
inline __m256i with_products(__m256i sum, __m256i unsigned_bytes, __m256i signed_bytes) {
#if !defined(LINNET_AVX2) && defined(__ARM_NEON)
  int32x4_t sums[2];
  int8x16_t a[2], b[2];
  std::memcpy(sums, &sum, sizeof sums);
  std::memcpy(a, &unsigned_bytes, sizeof a);
  std::memcpy(b, &signed_bytes, sizeof b);
  for (int n = 0; n < 2; ++n) {
#if defined(__ARM_FEATURE_DOTPROD)
    sums[n] = vdotq_s32(sums[n], a[n], b[n]);
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a[n]), vget_low_s8(b[n])));
    const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(a[n]), vget_high_s8(b[n])));
    sums[n] = vaddq_s32(sums[n], vpaddq_s32(low, high));
#endif
  }
  std::memcpy(&sum, sums, sizeof sums);
  return sum;
#elif !defined(LINNET_AVX2)
  const auto a = portable::bits_of<portable::Signed8>(unsigned_bytes);
  const auto b = portable::bits_of<portable::Signed8>(signed_bytes);
  return sum + portable::each<__m256i, 8>([&](int lane) {
           int32_t total = 0;
           for (int n = 4 * lane; n < 4 * lane + 4; ++n) total += a[n] * b[n];
           return total;
         });
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
#elif defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, unsigned_bytes, signed_bytes);
#else
  const __m256i pairs = _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// A row in fixed point: `(BASE * high + low) * step`, digits from -64 to 63.
struct Fixed {
  std::vector<int8_t> high, low;
  std::vector<int32_t> group_sums;  // of the integers in each group of inputs
  float step;
};

void fix(Fixed& fixed, const float* x, int64_t inputs, int64_t group) {
  const int64_t groups = (inputs + group - 1) / group;
  float largest = SMALLEST, nothing = 0.0f;
#pragma omp simd reduction(max : largest) reduction(+ : nothing)
  for (int64_t i = 0; i < inputs; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    nothing += 0.0f * x[i];
  }
  fixed.step = largest / LARGEST;
  fixed.high.resize(groups * group);
  fixed.low.resize(groups * group);
  fixed.group_sums.resize(groups);
  if (!(nothing == 0.0f)) {  // a row that is not finite has no integers; its results are NaN
    fixed.step = std::nanf("");
    std::fill(fixed.high.begin(), fixed.high.end(), 0);
    std::fill(fixed.low.begin(), fixed.low.end(), 0);
    std::fill(fixed.group_sums.begin(), fixed.group_sums.end(), 0);
    return;
  }
  const float reciprocal = LARGEST / largest;
  for (int64_t g = 0; g < groups; ++g) {
    int8_t *high = fixed.high.data() + g * group, *low = fixed.low.data() + g * group;
    const int64_t own = std::min(group, inputs - g * group);
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < own; ++i) {
      const int32_t whole = static_cast<int32_t>(std::nearbyintf(x[g * group + i] * reciprocal));
      const int32_t upper = (whole + BASE / 2) >> 7;
      high[i] = static_cast<int8_t>(upper);
      low[i] = static_cast<int8_t>(whole - upper * BASE);
      sum += whole;
    }
    std::fill(high + own, high + group, 0);
    std::fill(low + own, low + group, 0);
    fixed.group_sums[g] = sum;
  }
}

}  // namespace
