// Products of a few rows in float32 with matrices of 32, 16 and 8 bits; those of 4 bits are in int4.cpp.
//
// Decoding a stream reads every weight once for each token and does little else, so all of these read the weights once,
// in the order of memory, at the bandwidth of the memory. `ops.native.gemv` describes each function; several rows with
// weights of 16 and 8 bits are computed by tiles.hpp.

#include <algorithm>
#include <vector>

#include "functions.hpp"
#include "tiles.hpp"

namespace {

constexpr int SIDE_BY_SIDE = 2;  // vectors of an output with independent sums
#if defined(__AVX512VL__)
constexpr int TILE_OUTPUTS = 3;  // in float32, of two rows each: 24 sums in 32 registers
#else
constexpr int TILE_OUTPUTS = 1;  // 8 sums in 16 registers
#endif

// An output of bfloat16: weights at even indices times `even`, those at odd indices times `odd`, halves of the row `x`.
inline float bfloat16_output(const uint16_t* weights, const float* even, const float* odd, const float* x,
                             int64_t inputs) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  __m256 sums[2 * SIDE_BY_SIDE];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const auto add = [&](int64_t i, int n) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + i));
    const __m256 x_even = _mm256_loadu_ps(even + i / 2), x_odd = _mm256_loadu_ps(odd + i / 2);
    sums[2 * n] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(v, 16)), x_even, sums[2 * n]);
    sums[2 * n + 1] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(v, upper)), x_odd, sums[2 * n + 1]);
  };
  int64_t i = 0;
  for (; i + SIDE_BY_SIDE * 2 * LANES <= inputs; i += SIDE_BY_SIDE * 2 * LANES)
    for (int n = 0; n < SIDE_BY_SIDE; ++n) add(i + n * 2 * LANES, n);
  for (; i + 2 * LANES <= inputs; i += 2 * LANES) add(i, 0);
  for (int n = 1; n < 2 * SIDE_BY_SIDE; ++n) sums[0] = _mm256_add_ps(sums[0], sums[n]);
  float sum = sum_of(sums[0]);
  for (; i < inputs; ++i) sum += float_of_bfloat16(weights[i]) * x[i];
  return sum;
}

// Products of ROWS rows with OUTPUTS outputs, each in the same order of sums whatever the sizes of the tile are, so that a
// row has the same result alone and among others. A tile loads less for each product than its parts one by one.
template <int ROWS, int OUTPUTS>
inline void float32_tile(const float* weights, const float* x, int64_t inputs, float (&out)[ROWS][OUTPUTS]) {
  constexpr int SUMS = 2 * SIDE_BY_SIDE;
  __m256 sums[ROWS][OUTPUTS][SUMS];
  for (auto& row : sums)
    for (auto& output : row)
      for (__m256& sum : output) sum = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + SUMS * LANES <= inputs; i += SUMS * LANES) {
#pragma GCC unroll 4
    for (int n = 0; n < SUMS; ++n) {
      const float *const w = weights + i + n * LANES, *const of_rows = x + i + n * LANES;
      __m256 v[OUTPUTS];
#pragma GCC unroll 3
      for (int o = 0; o < OUTPUTS; ++o) v[o] = _mm256_loadu_ps(w + o * inputs);
#pragma GCC unroll 2
      for (int r = 0; r < ROWS; ++r) {
        const __m256 of_row = _mm256_loadu_ps(of_rows + r * inputs);
#pragma GCC unroll 3
        for (int o = 0; o < OUTPUTS; ++o) sums[r][o][n] = _mm256_fmadd_ps(v[o], of_row, sums[r][o][n]);
      }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 3
    for (int o = 0; o < OUTPUTS; ++o) {
      const float *const w = weights + o * inputs, *const row = x + r * inputs;
      int64_t rest = i;
      for (; rest + LANES <= inputs; rest += LANES)
        sums[r][o][0] = _mm256_fmadd_ps(_mm256_loadu_ps(w + rest), _mm256_loadu_ps(row + rest), sums[r][o][0]);
#pragma GCC unroll 4
      for (int n = 1; n < SUMS; ++n) sums[r][o][0] = _mm256_add_ps(sums[r][o][0], sums[r][o][n]);
      float sum = sum_of(sums[r][o][0]);
      for (; rest < inputs; ++rest) sum += w[rest] * row[rest];
      out[r][o] = sum;
    }
}

template <int ROWS, int OUTPUTS>
inline void set_float32_tile(const float* x, int64_t row, int64_t inputs, const float* weights, int64_t output,
                             const Result& result) {
  float found[ROWS][OUTPUTS];
  float32_tile<ROWS, OUTPUTS>(weights + output * inputs, x + row * inputs, inputs, found);
  for (int r = 0; r < ROWS; ++r)
    for (int o = 0; o < OUTPUTS; ++o) result.set(row + r, output + o, found[r][o]);
}

// All rows with OUTPUTS outputs, whose weights stay in the cache for as long as the rows are read.
template <int OUTPUTS>
inline void float32_outputs(const float* x, int64_t rows, int64_t inputs, const float* weights, int64_t output,
                            const Result& result) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2) set_float32_tile<2, OUTPUTS>(x, r, inputs, weights, output, result);
  if (r < rows) set_float32_tile<1, OUTPUTS>(x, r, inputs, weights, output, result);
}

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
  const Result result{bias, added, out, outputs};
  if (rows > 1) return bfloat16_rows_by_tiles(x, rows, inputs, weights, result, threads);
  thread_local std::vector<float> kept;
  kept.resize(2 * (inputs / 2));
  float *const even = kept.data(), *const odd = even + inputs / 2;
  for (int64_t i = 0; i < inputs / 2; ++i) {
    even[i] = x[2 * i];
    odd[i] = x[2 * i + 1];
  }
  divided(outputs, threads, [&](int64_t o) {
    result.set(0, o, bfloat16_output(weights + o * inputs, even, odd, x, inputs));
  });
}

void linnet_float32_rows(const float* x, int64_t rows, int64_t inputs, const float* weights, int64_t outputs,
                         const float* bias, const float* added, float* out, int threads) {
  const Result result{bias, added, out, outputs};
  if (rows == 1)  // one output after the other, as the memory is read
    return divided(outputs, threads, [&](int64_t o) { float32_outputs<1>(x, 1, inputs, weights, o, result); });
  divided((outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS, threads, [&](int64_t tile) {
    const int64_t first = tile * TILE_OUTPUTS;
    if (first + TILE_OUTPUTS <= outputs) return float32_outputs<TILE_OUTPUTS>(x, rows, inputs, weights, first, result);
    for (int64_t o = first; o < outputs; ++o) float32_outputs<1>(x, rows, inputs, weights, o, result);
  });
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
