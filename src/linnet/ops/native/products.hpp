// What products with a matrix have in common: where their results go, and rows in fixed point.
//
// A row that meets weights of 8 or 4 bits is written with two digits of 7 bits: bytes times bytes are the fastest
// products there are, and sums of whole numbers are exact, so a row gives the same on every processor, with any number
// of threads, and whatever stands beside it.

#pragma once

#include <algorithm>
#include <vector>

#include "vectors.hpp"

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
};

// Eight sums of whole numbers, each with four more products of bytes. The unsigned ones are at most 127 where the
// signed ones may be as large, so that two products have room in 16 bits.
inline __m256i with_products(__m256i sum, __m256i unsigned_bytes, __m256i signed_bytes) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
#elif defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, unsigned_bytes, signed_bytes);
#else
  const __m256i pairs = _mm256_maddubs_epi16(unsigned_bytes, signed_bytes);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// What stands for a row: `(BASE * high + low) * step`, digits from -64 to 63.
struct Fixed {
  std::vector<int8_t> high, low;
  std::vector<int32_t> group_sums;  // of the whole numbers in each group of inputs
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
  if (!(nothing == 0.0f)) {  // what is not finite has no whole numbers, and stays so
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
