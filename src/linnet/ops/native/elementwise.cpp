// The operations between the products of a row: norms, rotation, gates. Calls are most of their time.
//
// `ops.native.elementwise` describes each function. Exponentials are `exponential` of vectors.hpp.

#include <algorithm>

#include "functions.hpp"
#include "vectors.hpp"

namespace {

inline __m256 set(float one) { return _mm256_set1_ps(one); }

// 1 / (1 + e^-x), as the smaller of e^x and 1, divided by 1 + e^-|x|, so that no exponential overflows.
inline __m256 sigmoid(__m256 x) {
  const __m256 decayed = exponential(_mm256_min_ps(x, _mm256_sub_ps(_mm256_setzero_ps(), x)));
  return _mm256_div_ps(_mm256_blendv_ps(set(1.0f), decayed, x), _mm256_add_ps(set(1.0f), decayed));
}

// The error function, with an error of at most 1.5e-7 (Abramowitz and Stegun, 7.1.26).
inline __m256 error_function(__m256 x) {
  const __m256 sign = _mm256_and_ps(x, set(-0.0f)), size = _mm256_andnot_ps(set(-0.0f), x);
  const __m256 t = _mm256_div_ps(set(1.0f), _mm256_fmadd_ps(set(0.3275911f), size, set(1.0f)));
  __m256 sum = set(1.061405429f);
  for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) sum = _mm256_fmadd_ps(sum, t, set(term));
  const __m256 decayed = exponential(_mm256_fnmadd_ps(size, size, _mm256_setzero_ps()));
  return _mm256_or_ps(_mm256_fnmadd_ps(_mm256_mul_ps(sum, t), decayed, set(1.0f)), sign);
}

// In the order of `nn.activation.ACTIVATIONS`.
inline __m256 activated(__m256 x, int kind) {
  const __m256 zero = _mm256_setzero_ps();
  switch (kind) {
    case 0:  // silu
      return _mm256_mul_ps(x, sigmoid(x));
    case 1: {  // gelu
      const __m256 half = _mm256_mul_ps(x, set(0.5f));
      return _mm256_fmadd_ps(half, error_function(_mm256_mul_ps(x, set(0.70710678f))), half);
    }
    case 2: {  // gelu_tanh: (1 + tanh y) / 2 = 1 / (1 + e^-2y)
      const __m256 cubed = _mm256_fmadd_ps(_mm256_mul_ps(x, x), set(0.044715f), set(1.0f));
      return _mm256_mul_ps(x, sigmoid(_mm256_mul_ps(_mm256_mul_ps(x, cubed), set(1.59576912f))));
    }
    default: {  // relu, relu_squared; in this order NaN stays NaN
      const __m256 above = _mm256_max_ps(zero, x);
      return kind == 3 ? above : _mm256_mul_ps(above, above);
    }
  }
}

struct Vector {  // eight numbers, or a remainder padded with zeros
  const int64_t count;
  __m256i mask() const {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  __m256 load(const float* from) const { return count >= LANES ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, mask()); }
  void store(float* to, __m256 v) const {
    if (count >= LANES) {
      _mm256_storeu_ps(to, v);
    } else {
      _mm256_maskstore_ps(to, mask(), v);
    }
  }
};

// Calls `work` with the start and the length of each vector of `width` numbers.
template <typename Work>
void by_vectors(int64_t width, int threads, const Work& work) {
  divided((width + LANES - 1) / LANES, threads, [&](int64_t n) { work(n * LANES, Vector{width - n * LANES}); });
}

inline float sum_of_squares(const float* x, int64_t width) {
  __m256 squares = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const __m256 v = _mm256_loadu_ps(x + i);
    squares = _mm256_fmadd_ps(v, v, squares);
  }
  float sum = sum_of(squares);
  for (; i < width; ++i) sum += x[i] * x[i];
  return sum;
}

}  // namespace

extern "C" {

void linnet_rms_norm(const float* x, const float* gains, int64_t rows, int64_t width, float eps, float* out,
                     int threads) {
  divided(rows, threads, [&](int64_t r) {
    const float *row = x + r * width, *gain = gains + r * width;
    const float scale = 1.0f / std::sqrt(sum_of_squares(row, width) / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; ++i) out[r * width + i] = row[i] * scale * gain[i];
  });
}

void linnet_layer_norm(const float* x, const float* gains, const float* biases, int64_t rows, int64_t width, float eps,
                       float* out, int threads) {
  divided(rows, threads, [&](int64_t r) {
    const float *row = x + r * width, *gain = gains + r * width, *bias = biases + r * width;
    float* const place = out + r * width;
    float mean = 0.0f;
#pragma omp simd reduction(+ : mean)
    for (int64_t i = 0; i < width; ++i) mean += row[i];
    mean /= static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i) place[i] = row[i] - mean;
    const float scale = 1.0f / std::sqrt(sum_of_squares(place, width) / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; ++i) place[i] = place[i] * scale * gain[i] + bias[i];
  });
}

// Rotates the first `turned` of the `width` elements of each head in place; pairs are adjacent, or halves apart.
void linnet_rotate(float* x, int64_t heads, int64_t width, int64_t turned, const float* cosines, const float* sines,
                 int adjacent, int threads) {
  const int64_t pairs = turned / 2, apart = adjacent ? 1 : pairs, step = adjacent ? 2 : 1;
  divided(heads, threads, [&](int64_t h) {
    float* const head = x + h * width;
    for (int64_t p = 0; p < pairs; ++p) {
      float &first = head[p * step], &second = head[p * step + apart];
      const float before = first;
      first = before * cosines[p] - second * sines[p];
      second = second * cosines[p] + before * sines[p];
    }
  });
}

void linnet_activation(const float* x, int64_t width, int kind, float* out, int threads) {
  by_vectors(width, threads, [&](int64_t i, Vector part) { part.store(out + i, activated(part.load(x + i), kind)); });
}

// activation(gate) * value; both are `inner` wide.
void linnet_glu(const float* joint, int64_t inner, int kind, float* out, int threads) {
  by_vectors(inner, threads, [&](int64_t i, Vector part) {
    part.store(out + i, _mm256_mul_ps(activated(part.load(joint + i), kind), part.load(joint + inner + i)));
  });
}

// x times a factor, plus a summand that may be null.
void linnet_scale_add(const float* x, float factor, const float* added, int64_t width, float* out, int threads) {
  by_vectors(width, threads, [&](int64_t i, Vector part) {
    const __m256 more = added ? part.load(added + i) : _mm256_setzero_ps();
    part.store(out + i, _mm256_fmadd_ps(part.load(x + i), set(factor), more));
  });
}

}  // extern "C"
