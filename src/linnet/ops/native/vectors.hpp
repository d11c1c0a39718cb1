// Common parts of the products and attention: vectors of eight float32 numbers, and work divided among threads.
//
// On x86 processors with AVX2 and FMA these are its instructions, elsewhere those of portable.hpp.

#pragma once

#if defined(__AVX2__) && defined(__FMA__) && !defined(LINNET_PORTABLE)
#define LINNET_AVX2 1
#include <immintrin.h>
#else
#include "portable.hpp"
#endif

#ifdef _OPENMP
#include <omp.h>
#else  // a compiler without OpenMP ignores its directives: one thread does all the work
inline int omp_get_thread_num() { return 0; }
inline int omp_get_num_threads() { return 1; }
inline int omp_get_max_threads() { return 1; }
#endif

#include <cmath>
#include <cstdint>

constexpr int64_t LANES = 8;  // float32 numbers of a vector

#ifdef LINNET_AVX2
inline float sum_of(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

inline int32_t sum_of(__m256i v) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  half = _mm_add_epi32(half, _mm_unpackhi_epi64(half, half));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 1)));
}
#else  // in the same order
template <typename Vector>
inline auto sum_of(const Vector& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
#endif

inline __m256 float_of_bfloat16(__m128i eight) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}

inline float float_of_bfloat16(uint16_t one) {
  const uint32_t bits = static_cast<uint32_t>(one) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// e^x of numbers that are at most 0, to two units of float32's last place: 2^n e^r, `r` at most ln 2 / 2.
inline __m256 exponential(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-87.0f), x);  // in this order NaN stays NaN
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  const __m256 near = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);
  const __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), near);
  __m256 sum = _mm256_set1_ps(1.0f / 720);
  const float terms[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (float term : terms)
    sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(term));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sum), exponent));
}

// This thread among those that run a program together (program.cpp); outside of a program there are none.
struct Team {
  int64_t own = 0, all = 0;
};
inline thread_local Team team;

// Calls `work` for each block, divided among the threads of the team, which all call this function, or new ones.
template <typename Work>
void divided(int64_t blocks, int threads, const Work& work) {
  const auto share = [&](int64_t own, int64_t all) {
    for (int64_t block = blocks * own / all; block < blocks * (own + 1) / all; ++block) work(block);
  };
  if (team.all > 0) return share(team.own, team.all);
  if (threads <= 1) return share(0, 1);
#pragma omp parallel num_threads(threads)
  share(omp_get_thread_num(), omp_get_num_threads());
}
