// Attention of one token of each stream to those before it, over keys and values in float32 or bfloat16.
//
// `ops.native.attention` describes the functions. Scores, weights and sums are in float32.

#include <algorithm>
#include <vector>

#include "functions.hpp"
#include "vectors.hpp"

namespace {

constexpr int SIDE_BY_SIDE = 4;  // keys

inline __m256 eight(const float* numbers) { return _mm256_loadu_ps(numbers); }
inline __m256 eight(const uint16_t* numbers) {
  return float_of_bfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
}
inline float one(float number) { return number; }
inline float one(uint16_t number) { return float_of_bfloat16(number); }
inline void store(float* place, float number) { *place = number; }
inline void store(uint16_t* place, float number) {  // rounded to the nearest, to even between two, as PyTorch does
  uint32_t bits;
  __builtin_memcpy(&bits, &number, sizeof bits);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  *place = static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// One head of keys and values, and the queries that read it.
template <typename Number>
struct Head {
  const float* queries;  // `shared` of them, `width` wide
  const Number *keys, *values;
  int64_t shared, width, seen;
  float factor;

  // Scores of `count` adjacent keys, with independent sums.
  template <int count>
  void score(const float* query, const Number* key, float* scores) const {
    __m256 sums[count];
    for (__m256& sum : sums) sum = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
      const __m256 part = _mm256_loadu_ps(query + i);
      for (int n = 0; n < count; ++n) sums[n] = _mm256_fmadd_ps(part, eight(key + n * width + i), sums[n]);
    }
    for (int n = 0; n < count; ++n) {
      float total = sum_of(sums[n]);
      for (int64_t rest = i; rest < width; ++rest) total += query[rest] * one(key[n * width + rest]);
      scores[n] = total * factor;
    }
  }

  // Replaces scores by weights that are not yet divided by their sum, which is returned.
  float weigh(float* scores) const {
    float largest = scores[0];
#pragma omp simd reduction(max : largest)
    for (int64_t s = 0; s < seen; ++s) largest = std::max(largest, scores[s]);
    const __m256 most = _mm256_set1_ps(largest);
    __m256 sums = _mm256_setzero_ps();
    int64_t s = 0;
    for (; s + LANES <= seen; s += LANES) {
      const __m256 weight = exponential(_mm256_sub_ps(_mm256_loadu_ps(scores + s), most));
      _mm256_storeu_ps(scores + s, weight);
      sums = _mm256_add_ps(sums, weight);
    }
    float sum = sum_of(sums);
    for (; s < seen; ++s) sum += scores[s] = std::exp(scores[s] - largest);
    return sum;
  }

  void read(const float* weights, float scale, float* out) const {
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES) read_vectors<4>(weights, scale, i, out);
    for (; i + LANES <= width; i += LANES) read_vectors<1>(weights, scale, i, out);
    for (; i < width; ++i) {
      float sum = 0.0f;
      for (int64_t s = 0; s < seen; ++s) sum += weights[s] * one(values[s * width + i]);
      out[i] = sum * scale;
    }
  }

  template <int count>
  void read_vectors(const float* weights, float scale, int64_t begin, float* out) const {
    __m256 sums[count];
    for (__m256& sum : sums) sum = _mm256_setzero_ps();
    for (int64_t s = 0; s < seen; ++s) {
      const __m256 weight = _mm256_set1_ps(weights[s]);
      for (int n = 0; n < count; ++n)
        sums[n] = _mm256_fmadd_ps(weight, eight(values + s * width + begin + n * LANES), sums[n]);
    }
    for (int n = 0; n < count; ++n)
      _mm256_storeu_ps(out + begin + n * LANES, _mm256_mul_ps(sums[n], _mm256_set1_ps(scale)));
  }

  void attend(float* out) const {
    thread_local std::vector<float> scores;
    scores.resize(shared * seen);
    int64_t s = 0;
    for (; s + SIDE_BY_SIDE <= seen; s += SIDE_BY_SIDE)
      for (int64_t p = 0; p < shared; ++p)
        score<SIDE_BY_SIDE>(queries + p * width, keys + s * width, scores.data() + p * seen + s);
    for (; s < seen; ++s)
      for (int64_t p = 0; p < shared; ++p)
        score<1>(queries + p * width, keys + s * width, scores.data() + p * seen + s);
    for (int64_t p = 0; p < shared; ++p) {
      float* const own = scores.data() + p * seen;
      const float sum = weigh(own);
      read(own, 1.0f / sum, out + p * width);
    }
  }
};

template <typename Number>
void attention_row(const float* queries, const float* key, const float* value, Number* keys, Number* values,
                   int64_t heads, int64_t shared, int64_t capacity, int64_t width, int64_t position, float factor,
                   float* out, int threads) {
  divided(heads, threads, [&](int64_t h) {
    Number *own_keys = keys + h * capacity * width, *own_values = values + h * capacity * width;
    for (int64_t i = 0; i < width; ++i) {
      store(own_keys + position * width + i, key[h * width + i]);
      store(own_values + position * width + i, value[h * width + i]);
    }
    const Head<Number> head{queries + h * shared * width, own_keys, own_values, shared, width, position + 1, factor};
    head.attend(out + h * shared * width);
  });
}

template <typename Number>
void attention_past(const float* queries, const Number* keys, const Number* values, int64_t streams, int64_t heads,
                    int64_t shared, int64_t of_stream, int64_t of_head, int64_t width, const int64_t* seen,
                    float factor, float* out, int threads) {
  divided(streams * heads, threads, [&](int64_t i) {
    const int64_t stream = i / heads, place = stream * of_stream + i % heads * of_head, own = i * shared * width;
    const Head<const Number> head{queries + own, keys + place,  values + place, shared,
                                  width,         seen[stream], factor};
    head.attend(out + own);
  });
}

}  // namespace

extern "C" {

void linnet_attention_row(const float* queries, const float* key, const float* value, void* keys, void* values,
                          int64_t heads, int64_t shared, int64_t capacity, int64_t width, int64_t position,
                          float factor, float* out, int bfloat16, int threads) {
  if (bfloat16) {
    attention_row(queries, key, value, static_cast<uint16_t*>(keys), static_cast<uint16_t*>(values), heads, shared,
                  capacity, width, position, factor, out, threads);
  } else {
    attention_row(queries, key, value, static_cast<float*>(keys), static_cast<float*>(values), heads, shared, capacity,
                  width, position, factor, out, threads);
  }
}

// Of several streams, whose own keys and values are stored already; `seen`: tokens of each.
void linnet_attention_past(const float* queries, const void* keys, const void* values, int64_t streams, int64_t heads,
                           int64_t shared, int64_t of_stream, int64_t of_head, int64_t width, const int64_t* seen,
                           float factor, float* out, int bfloat16, int threads) {
  if (bfloat16) {
    attention_past(queries, static_cast<const uint16_t*>(keys), static_cast<const uint16_t*>(values), streams, heads,
                   shared, of_stream, of_head, width, seen, factor, out, threads);
  } else {
    attention_past(queries, static_cast<const float*>(keys), static_cast<const float*>(values), streams, heads, shared,
                   of_stream, of_head, width, seen, factor, out, threads);
  }
}

// q G of each head: `operators` has a matrix `[width, width]` for each.
void linnet_apply_operator(const float* queries, const float* operators, int64_t heads, int64_t shared, int64_t width,
                             float* out, int threads) {
  divided(heads, threads, [&](int64_t h) {
    const float* const matrix = operators + h * width * width;
    for (int64_t p = h * shared; p < (h + 1) * shared; ++p) {
      float* const row = out + p * width;
      std::fill(row, row + width, 0.0f);
      for (int64_t k = 0; k < width; ++k)
        for (int64_t i = 0; i < width; ++i) row[i] = std::fma(queries[p * width + k], matrix[k * width + i], row[i]);
    }
  });
}

}  // extern "C"
