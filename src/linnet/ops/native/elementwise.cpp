// What lies between the products of a row: RMS norm, rotation, a gate. Little work, of which calls are most.
//
// `ops.native.elementwise` says what each function computes. Exponentials are `exponential` of vectors.hpp.

#include "vectors.hpp"

extern "C" {

void linnet_rms_norm(const float* x, const float* gain, int64_t width, float eps, float* out) {
  __m256 squares = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const __m256 v = _mm256_loadu_ps(x + i);
    squares = _mm256_fmadd_ps(v, v, squares);
  }
  float sum = sum_of(squares);
  for (; i < width; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
  for (i = 0; i < width; ++i) out[i] = x[i] * scale * gain[i];
}

// The first `turned` of the `width` elements of each head, in place. A pair lies side by side, or half of them apart.
void linnet_turn(float* x, int64_t heads, int64_t width, int64_t turned, const float* cosines, const float* sines,
                 int adjacent) {
  const int64_t pairs = turned / 2, apart = adjacent ? 1 : pairs, step = adjacent ? 2 : 1;
  for (int64_t h = 0; h < heads; ++h) {
    float* const head = x + h * width;
    for (int64_t p = 0; p < pairs; ++p) {
      float &first = head[p * step], &second = head[p * step + apart];
      const float before = first;
      first = before * cosines[p] - second * sines[p];
      second = second * cosines[p] + before * sines[p];
    }
  }
}

// Of a gate and what it lets through, `inner` wide each: gate / (1 + e^-gate) times the other.
void linnet_gated_silu(const float* joint, int64_t inner, float* out) {
  const __m256 one = _mm256_set1_ps(1.0f), zero = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + LANES <= inner; i += LANES) {
    const __m256 gate = _mm256_loadu_ps(joint + i), value = _mm256_loadu_ps(joint + inner + i);
    // the smaller of e^g and 1 over 1 + e^-|g|: what grows without end is never computed
    const __m256 decayed = exponential(_mm256_min_ps(gate, _mm256_sub_ps(zero, gate)));
    const __m256 above = _mm256_blendv_ps(one, decayed, gate);
    const __m256 share = _mm256_div_ps(above, _mm256_add_ps(one, decayed));
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(gate, share), value));
  }
  for (; i < inner; ++i) out[i] = joint[i] / (1.0f + std::exp(-joint[i])) * joint[inner + i];
}

}  // extern "C"
