// Products in float32 with matrices of 4 bits, of one row or of any number.
//
// Of one row they keep up with the memory, as those in rows.cpp. Several share what is unpacked: a tile of them meets
// the same weights together, which stay in a cache until all tiles have read them. What a row gives is the same, bit
// for bit, alone and in a tile of any size.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "functions.hpp"
#include "products.hpp"

namespace {

constexpr int64_t SCALE_BYTES = 16;       // of a group of a block
constexpr int64_t ROWS_AT_ONCE = 512;     // whose tiles are held
constexpr int64_t PANEL_BYTES = 1 << 18;  // of weights that tiles read one after the other

inline int64_t bytes_of_block(int64_t groups, int64_t group) { return groups * (group / LANES * BYTES + SCALE_BYTES); }

// Eight outputs of 4 bits. Of each group the numbers, `group / 8` vectors, and then the scales: apart from each other,
// in two streams, they are read at a third of the speed.
inline __m256 int4_outputs(const uint8_t* weights, const Fixed& row, int64_t groups, int64_t group) {
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256 out = _mm256_setzero_ps();
  const int8_t *x_high = row.high.data(), *x_low = row.low.data();
  const auto four = [](const int8_t* digits) {
    int32_t bytes;
    __builtin_memcpy(&bytes, digits, sizeof bytes);
    return _mm256_set1_epi32(bytes);
  };
  for (int64_t g = 0; g < groups; ++g) {
    __m256i high = _mm256_setzero_si256(), low = _mm256_setzero_si256();
    for (int64_t i = 0; i < group; i += LANES, weights += BYTES, x_high += LANES, x_low += LANES) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
      const __m256i first = _mm256_and_si256(v, nibble), second = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
      high = with_products(with_products(high, first, four(x_high)), second, four(x_high + 4));
      low = with_products(with_products(low, first, four(x_low)), second, four(x_low + 4));
    }
    const __m256i middle = _mm256_set1_epi32(8 * row.group_sums[g]);
    const __m256i total = _mm256_sub_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, 7), low), middle);
    const __m256 scales = float_of_bfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
    out = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scales, out);
    weights += SCALE_BYTES;
  }
  return _mm256_mul_ps(out, _mm256_set1_ps(row.step));
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
constexpr int SIDE = 2;  // blocks in a vector
constexpr int TILE = 8;  // rows at most: three sums of each are in registers
using Whole = __m512i;
using Real = __m512;
inline Whole nothing() { return _mm512_setzero_si512(); }
inline Whole everywhere(int32_t number) { return _mm512_set1_epi32(number); }
inline Whole bytes_of(const uint8_t* block, const uint8_t* beside) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(beside));
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}
inline Whole lower(Whole pairs) { return _mm512_and_si512(pairs, _mm512_set1_epi8(15)); }
inline Whole upper(Whole pairs) { return lower(_mm512_srli_epi16(pairs, 4)); }
inline Whole added(Whole sum, Whole unsigned_bytes, Whole signed_bytes) {
  return _mm512_dpbusd_epi32(sum, unsigned_bytes, signed_bytes);
}
inline Whole of_digits(Whole high, Whole low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low); }
inline Real scales_of(const uint8_t* block, const uint8_t* beside) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(beside));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
}
inline Real zero() { return _mm512_setzero_ps(); }
inline Real with(Real sum, Whole number, Real scale) { return _mm512_fmadd_ps(_mm512_cvtepi32_ps(number), scale, sum); }
inline Real times(Real sum, float step) { return _mm512_mul_ps(sum, _mm512_set1_ps(step)); }
inline void keep(float* place, Real sum) { _mm512_storeu_ps(place, sum); }
#else
constexpr int SIDE = 1;
constexpr int TILE = 4;
using Whole = __m256i;
using Real = __m256;
inline Whole nothing() { return _mm256_setzero_si256(); }
inline Whole everywhere(int32_t number) { return _mm256_set1_epi32(number); }
inline Whole bytes_of(const uint8_t* block, const uint8_t*) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block));
}
inline Whole lower(Whole pairs) { return _mm256_and_si256(pairs, _mm256_set1_epi8(15)); }
inline Whole upper(Whole pairs) { return lower(_mm256_srli_epi16(pairs, 4)); }
inline Whole added(Whole sum, Whole unsigned_bytes, Whole signed_bytes) {
  return with_products(sum, unsigned_bytes, signed_bytes);
}
inline Whole of_digits(Whole high, Whole low) { return _mm256_add_epi32(_mm256_slli_epi32(high, 7), low); }
inline Real scales_of(const uint8_t* block, const uint8_t*) {
  return float_of_bfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block)));
}
inline Real zero() { return _mm256_setzero_ps(); }
inline Real with(Real sum, Whole number, Real scale) { return _mm256_fmadd_ps(_mm256_cvtepi32_ps(number), scale, sum); }
inline Real times(Real sum, float step) { return _mm256_mul_ps(sum, _mm256_set1_ps(step)); }
inline void keep(float* place, Real sum) { _mm256_storeu_ps(place, sum); }
#endif

// Rows in fixed point that meet weights together.
struct Tile {
  std::vector<int32_t> digits;       // [inputs / 4][rows][2]: four bytes of the upper digits, four of the lower ones
  std::vector<int32_t> less_middle;  // [groups][rows]: what numbers that stand for 0 add up to, with a minus
  float steps[TILE];
  int rows;

  void fill(const float* x, int count, int64_t inputs, int64_t group) {
    thread_local Fixed fixed;
    const int64_t groups = (inputs + group - 1) / group, quads = groups * group / 4;
    rows = count;
    digits.resize(quads * rows * 2);
    less_middle.resize(groups * rows);
    for (int r = 0; r < rows; ++r) {
      fix(fixed, x + r * inputs, inputs, group);
      steps[r] = fixed.step;
      for (int64_t quad = 0; quad < quads; ++quad) {
        int32_t* const place = digits.data() + (quad * rows + r) * 2;
        __builtin_memcpy(place, fixed.high.data() + 4 * quad, 4);
        __builtin_memcpy(place + 1, fixed.low.data() + 4 * quad, 4);
      }
      for (int64_t g = 0; g < groups; ++g) less_middle[g * rows + r] = -8 * fixed.group_sums[g];
    }
  }
};

// The outputs of `SIDE` blocks for a tile of so many rows, `[rows][SIDE * LANES]`.
template <int rows>
void meet(const Tile& tile, const uint8_t* block, const uint8_t* beside, int64_t groups, int64_t group, float* out) {
  const int32_t *digits = tile.digits.data(), *less_middle = tile.less_middle.data();
  Real sums[rows];
  for (Real& sum : sums) sum = zero();
  for (int64_t g = 0; g < groups; ++g, less_middle += rows) {
    Whole high[rows], low[rows];
    for (int r = 0; r < rows; ++r) {
      high[r] = nothing();
      low[r] = everywhere(less_middle[r]);
    }
    const auto meet_four = [&](Whole numbers) {
      for (int r = 0; r < rows; ++r) {
        high[r] = added(high[r], numbers, everywhere(digits[2 * r]));
        low[r] = added(low[r], numbers, everywhere(digits[2 * r + 1]));
      }
      digits += 2 * rows;
    };
    for (int64_t i = 0; i < group; i += LANES, block += BYTES, beside += BYTES) {
      const Whole pairs = bytes_of(block, beside);
      meet_four(lower(pairs));
      meet_four(upper(pairs));
    }
    const Real scales = scales_of(block, beside);
    for (int r = 0; r < rows; ++r) sums[r] = with(sums[r], of_digits(high[r], low[r]), scales);
    block += SCALE_BYTES;
    beside += SCALE_BYTES;
  }
  for (int r = 0; r < rows; ++r) keep(out + r * SIDE * LANES, times(sums[r], tile.steps[r]));
}

using Meet = void (*)(const Tile&, const uint8_t*, const uint8_t*, int64_t, int64_t, float*);

template <int... less>
Meet meet_of(int rows, std::integer_sequence<int, less...>) {
  constexpr Meet each[] = {meet<less + 1>...};
  return each[rows - 1];
}

// The matrix, its blocks one behind the other.
struct Matrix {
  const uint8_t* weights;
  int64_t groups, group, outputs;

  int64_t bytes() const { return bytes_of_block(groups, group); }
  int64_t blocks() const { return (outputs + LANES - 1) / LANES; }
};

// The outputs of some pairs of blocks, for all tiles, the first of which begins with the row `first`.
void meet_tiles(const Matrix& matrix, const std::vector<Tile>& tiles, int64_t count, int64_t first, int64_t begin,
                int64_t end, const Result& result) {
  for (int64_t t = 0; t < count; first += tiles[t++].rows) {
    const Tile& tile = tiles[t];
    const Meet meet_tile = meet_of(tile.rows, std::make_integer_sequence<int, TILE>{});
    for (int64_t pair = begin; pair < end; ++pair) {
      float out[TILE * SIDE * LANES];
      const int64_t block = pair * SIDE, last = std::min(block + SIDE - 1, matrix.blocks() - 1);
      meet_tile(tile, matrix.weights + block * matrix.bytes(), matrix.weights + last * matrix.bytes(), matrix.groups,
                matrix.group, out);
      const int64_t first_output = block * LANES, own = std::min<int64_t>(SIDE * LANES, matrix.outputs - first_output);
      for (int r = 0; r < tile.rows; ++r)
        for (int64_t o = 0; o < own; ++o) result.set(first + r, first_output + o, out[r * SIDE * LANES + o]);
    }
  }
}

// One row. Pairs of blocks are two streams to the memory, which takes twice as long to read them.
void row_alone(const float* x, int64_t inputs, const Matrix& matrix, const Result& result, int threads) {
  const Fixed& fixed = fixed_rows(x, 1, inputs, matrix.group)[0];
  divided(matrix.blocks(), threads, [&](int64_t block) {
    float sums[LANES];
    const uint8_t* const weights = matrix.weights + block * matrix.bytes();
    _mm256_storeu_ps(sums, int4_outputs(weights, fixed, matrix.groups, matrix.group));
    for (int64_t o = block * LANES; o < std::min((block + 1) * LANES, matrix.outputs); ++o)
      result.set(0, o, sums[o - block * LANES]);
  });
}

// Rows from `first` on.
void rows_together(const float* x, int64_t first, int64_t rows, int64_t inputs, const Matrix& matrix,
                   const Result& result, int threads) {
  thread_local std::vector<Tile> kept;
  const int64_t count = (rows + TILE - 1) / TILE;
  if (static_cast<int64_t>(kept.size()) < count) kept.resize(count);
  std::vector<Tile>& tiles = kept;  // of this thread, whoever works with them
  const auto fill = [&](int64_t t) {
    const int64_t begin = first + rows * t / count, end = first + rows * (t + 1) / count;
    tiles[t].fill(x + begin * inputs, static_cast<int>(end - begin), inputs, matrix.group);
  };
  if (team.all > 0) {
    for (int64_t t = 0; t < count; ++t) fill(t);
  } else {
    divided(count, threads, fill);
  }
  const int64_t pairs = (matrix.blocks() + SIDE - 1) / SIDE;
  const int64_t at_once = std::max<int64_t>(PANEL_BYTES / (SIDE * matrix.bytes()), 1);
  const int64_t panels = threads * ((pairs + threads * at_once - 1) / (threads * at_once));
  divided(panels, threads, [&](int64_t panel) {
    meet_tiles(matrix, tiles, count, first, pairs * panel / panels, pairs * (panel + 1) / panels, result);
  });
}

}  // namespace

extern "C" {

void linnet_int4_rows(const float* x, int64_t rows, int64_t inputs, const uint8_t* weights, int64_t group,
                      int64_t outputs, const float* bias, const float* added, float* out, int threads) {
  const Result result{bias, added, out, outputs};
  const Matrix matrix{weights, (inputs + group - 1) / group, group, outputs};
  if (rows == 1) return row_alone(x, inputs, matrix, result, threads);
  for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE)
    rows_together(x, first, std::min(ROWS_AT_ONCE, rows - first), inputs, matrix, result, threads);
}

// Rows from which on products with a matrix made in float32 are faster: without instructions for sums of four products
// of bytes these take three each.
int64_t linnet_most_int4_rows() {
#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
  return std::numeric_limits<int64_t>::max();
#else
  return 16;
#endif
}

// Rows `[count, groups * group]` of the matrix that blocks of 4 bits stand for, from output `first` on.
void linnet_int4_matrix(const uint8_t* weights, int64_t groups, int64_t group, int64_t first, int64_t count, float* out,
                        int threads) {
  const int64_t bytes = bytes_of_block(groups, group);
  divided(count, threads, [&](int64_t row) {
    const int64_t output = first + row, lane = output % LANES;
    const uint8_t* numbers = weights + output / LANES * bytes;
    float* place = out + row * groups * group;
    for (int64_t g = 0; g < groups; ++g, numbers += SCALE_BYTES) {
      const auto* scales = reinterpret_cast<const uint16_t*>(numbers + group / LANES * BYTES);
      const float scale = float_of_bfloat16(scales[lane]);
      for (int64_t i = 0; i < group; i += LANES, numbers += BYTES, place += LANES) {
        const uint8_t* four = numbers + 4 * lane;
        for (int n = 0; n < 4; ++n) {
          place[n] = static_cast<float>((four[n] & 15) - 8) * scale;
          place[n + 4] = static_cast<float>((four[n] >> 4) - 8) * scale;
        }
      }
    }
  });
}

}  // extern "C"
