// Products of a few rows in float32 with matrices of 32, 16 and 8 bits; those of 4 bits are in int4.cpp.
//
// Decoding a stream reads every weight once for each token and does little else, so products of one row read the weights
// in the order of memory, at its bandwidth. `ops.native.gemv` describes each function; products of several rows, and all
// with floating-point weights, are computed by tiles.hpp.

#include <algorithm>
#include <vector>

#include "functions.hpp"
#include "tiles.hpp"

namespace {

constexpr int SIDE_BY_SIDE = 2;  // vectors of an output with independent sums

// Rows in fixed point. The memory is reused from call to call: the system clears newly allocated memory first.
std::vector<Fixed>& fixed_rows(const float* x, int64_t rows, int64_t inputs, int64_t group) {
  thread_local std::vector<Fixed> kept;
  if (static_cast<int64_t>(kept.size()) < rows) kept.resize(rows);
  for (int64_t r = 0; r < rows; ++r) fix(kept[r], x + r * inputs, inputs, group);
  return kept;
}

// An output of 8 bits, without its scale and the row's step. `width` is a multiple of `BYTES`.
inline float int8_output(const int8_t* weights, const Fixed& row, int64_t width) {
  __m256i high[SIDE_BY_SIDE], low[SIDE_BY_SIDE];
  for (int n = 0; n < SIDE_BY_SIDE; ++n) high[n] = low[n] = _mm256_setzero_si256();
  const auto add = [&](int64_t i, int n) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + i));
    const __m256i x_high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.high.data() + i));
    const __m256i x_low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.low.data() + i));
    const __m256i size = _mm256_abs_epi8(v);  // one factor has to be unsigned, so the digit takes the sign
    high[n] = with_products(high[n], size, _mm256_sign_epi8(x_high, v));
    low[n] = with_products(low[n], size, _mm256_sign_epi8(x_low, v));
  };
  int64_t i = 0;
  for (; i + SIDE_BY_SIDE * BYTES <= width; i += SIDE_BY_SIDE * BYTES)
    for (int n = 0; n < SIDE_BY_SIDE; ++n) add(i + n * BYTES, n);
  for (; i < width; i += BYTES) add(i, 0);
  for (int n = 1; n < SIDE_BY_SIDE; ++n) {
    high[0] = _mm256_add_epi32(high[0], high[n]);
    low[0] = _mm256_add_epi32(low[0], low[n]);
  }
  return static_cast<float>(sum_of(high[0])) * BASE + static_cast<float>(sum_of(low[0]));
}

}  // namespace

extern "C" {

void linnet_bfloat16_rows(const float* x, int64_t rows, int64_t inputs, const uint16_t* weights, int64_t outputs,
                          const float* bias, const float* added, float* out, int threads) {
  thread_local Scratch<float> kept;
  float* const ordered = kept.room(rows * inputs);
  for (int64_t r = 0; r < rows; ++r) Bfloat16::order(x + r * inputs, inputs, ordered + r * inputs);
  rows_of_floats<Bfloat16>(ordered, rows, inputs, weights, Result{bias, added, out, outputs}, threads);
}

void linnet_float32_rows(const float* x, int64_t rows, int64_t inputs, const float* weights, int64_t outputs,
                         const float* bias, const float* added, float* out, int threads) {
  rows_of_floats<Float32>(x, rows, inputs, weights, Result{bias, added, out, outputs}, threads);
}

void linnet_int8_rows(const float* x, int64_t rows, int64_t inputs, const int8_t* weights, int64_t width,
                      const uint16_t* scales, int64_t outputs, const float* bias, const float* added, float* out,
                      int threads) {
  const Result result{bias, added, out, outputs};
  const std::vector<Fixed>& fixed = fixed_rows(x, rows, inputs, width);
  if (rows > 1) return int8_rows_by_tiles(fixed, rows, weights, width, scales, result, threads);
  divided(outputs, threads, [&](int64_t o) {
    const float scale = float_of_bfloat16(scales[o]);
    result.set(0, o, int8_output(weights + o * width, fixed[0], width) * (fixed[0].step * scale));
  });
}

// A row of a matrix, its weights and its scale.
void linnet_float32_matrix(const float* weights, int64_t inputs, float* out, int threads) {
  divided(inputs, threads, [&](int64_t i) { out[i] = weights[i]; });
}

void linnet_bfloat16_matrix(const uint16_t* weights, int64_t inputs, float* out, int threads) {
  divided(inputs, threads, [&](int64_t i) { out[i] = float_of_bfloat16(weights[i]); });
}

void linnet_int8_matrix(const int8_t* weights, const uint16_t* scales, int64_t inputs, float* out, int threads) {
  const float scale = float_of_bfloat16(*scales);
  divided(inputs, threads, [&](int64_t i) { out[i] = static_cast<float>(weights[i]) * scale; });
}

}  // extern "C"
