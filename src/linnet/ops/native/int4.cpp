// Products in float32 with matrices of 4 bits, of one row or of any number.
//
// One row is computed at the bandwidth of the memory, as in rows.cpp: weights are read in the order of memory, of each
// group first the numbers, then the scales. In two separate streams they would be read at a third of the speed. Several
// rows share the unpacked weights: a tile of rows is multiplied with the same weights together, which stay in a cache
// until all tiles have read them. The result of a row is the same, bit for bit, alone and in a tile of any size.

#include <algorithm>
#include <limits>
#include <vector>

#include "functions.hpp"
#include "wide.hpp"

namespace {

constexpr int64_t BLOCK = 16;            // adjacent outputs
constexpr int64_t PARTS = BLOCK / WIDE;  // vectors of a block
constexpr int64_t RUN = 8;               // adjacent inputs: four bytes of each output
constexpr int64_t RUN_BYTES = 4 * BLOCK;
constexpr int64_t SCALE_BYTES = 2 * BLOCK;  // of a group

constexpr int ROWS = TILE / PARTS;        // of a tile at most
constexpr int64_t ROWS_AT_ONCE = 512;     // whose tiles are in memory
constexpr int64_t PANEL_BYTES = 1 << 18;  // of weights that all tiles read before the next panel

inline int64_t bytes_of_block(int64_t groups, int64_t group) {
  return groups * (group / RUN * RUN_BYTES + SCALE_BYTES);
}

#ifdef LINNET_AVX512
inline Real scales_of(const uint8_t* place) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(place));
  return as_real(shifted_left(_mm512_cvtepu16_epi32(narrow), 16));
}
#else
inline Real scales_of(const uint8_t* place) {
  return float_of_bfloat16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(place)));
}
#endif

// Rows in fixed point that are multiplied together.
struct Tile {
  std::vector<int32_t> digits;       // [inputs / 4][rows][2]: four bytes of the upper digits, four of the lower ones
  std::vector<int32_t> less_middle;  // [groups][rows]: minus the sum for weights that represent 0
  float steps[ROWS];
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

// The outputs of a block for a tile of `rows` rows, `[rows][BLOCK]`.
template <int rows>
struct Met {
  static void call(const Tile& tile, const uint8_t* weights, int64_t groups, int64_t group, float* out) {
    const int32_t *digits = tile.digits.data(), *less_middle = tile.less_middle.data();
    const Whole nibble = every_byte(15);
    Real sums[rows][PARTS];
    for (auto& row : sums)
      for (Real& each : row) each = zero();
    for (int64_t g = 0; g < groups; ++g, less_middle += rows) {
      Whole high[rows][PARTS], low[rows][PARTS];
      for (int r = 0; r < rows; ++r)
        for (int p = 0; p < PARTS; ++p) {
          high[r][p] = nothing();
          low[r][p] = everywhere(less_middle[r]);
        }
      const auto meet_four = [&](Whole numbers, int p, const int32_t* own) {
        for (int r = 0; r < rows; ++r) {
          high[r][p] = with_products(high[r][p], numbers, everywhere(own[2 * r]));
          low[r][p] = with_products(low[r][p], numbers, everywhere(own[2 * r + 1]));
        }
      };
      for (int64_t i = 0; i < group; i += RUN, weights += RUN_BYTES, digits += 4 * rows)
        for (int p = 0; p < PARTS; ++p) {
          const Whole pairs = whole_at(weights + p * sizeof(Whole));
          meet_four(both(pairs, nibble), p, digits);
          meet_four(both(shifted_right(pairs, 4), nibble), p, digits + 2 * rows);
        }
      for (int p = 0; p < PARTS; ++p) {
        const Real scales = scales_of(weights + p * 2 * WIDE);
        for (int r = 0; r < rows; ++r)
          sums[r][p] = with_product(sums[r][p], real_of(sum(shifted_left(high[r][p], 7), low[r][p])), scales);
      }
      weights += SCALE_BYTES;
    }
    for (int r = 0; r < rows; ++r)
      for (int p = 0; p < PARTS; ++p)
        keep(out + r * BLOCK + p * WIDE, product(sums[r][p], everywhere(tile.steps[r])));
  }
};

// The matrix, as consecutive blocks.
struct Matrix {
  const uint8_t* weights;
  int64_t groups, group, outputs;

  int64_t bytes() const { return bytes_of_block(groups, group); }
  int64_t blocks() const { return (outputs + BLOCK - 1) / BLOCK; }
};

// The outputs of some blocks, for all tiles, the first of which begins with the row `first`.
void meet_tiles(const Matrix& matrix, const std::vector<Tile>& tiles, int64_t count, int64_t first, int64_t begin,
                int64_t end, const Result& result) {
  for (int64_t t = 0; t < count; first += tiles[t++].rows) {
    const Tile& tile = tiles[t];
    const auto meet_tile = for_rows<Met, ROWS>(tile.rows);
    for (int64_t block = begin; block < end; ++block) {
      float out[ROWS * BLOCK];
      meet_tile(tile, matrix.weights + block * matrix.bytes(), matrix.groups, matrix.group, out);
      const int64_t first_output = block * BLOCK, own = std::min(BLOCK, matrix.outputs - first_output);
      for (int r = 0; r < tile.rows; ++r)
        for (int64_t o = 0; o < own; ++o) result.set(first + r, first_output + o, out[r * BLOCK + o]);
    }
  }
}

// Rows from `first` on.
void rows_together(const float* x, int64_t first, int64_t rows, int64_t inputs, const Matrix& matrix,
                   const Result& result, int threads) {
  thread_local std::vector<Tile> kept;
  const int64_t count = (rows + ROWS - 1) / ROWS;
  if (static_cast<int64_t>(kept.size()) < count) kept.resize(count);
  std::vector<Tile>& tiles = kept;  // of this thread; all threads work with them
  const auto fill = [&](int64_t t) {
    const int64_t begin = first + rows * t / count, end = first + rows * (t + 1) / count;
    tiles[t].fill(x + begin * inputs, static_cast<int>(end - begin), inputs, matrix.group);
  };
  if (team.all > 0) {
    for (int64_t t = 0; t < count; ++t) fill(t);
  } else {
    divided(count, threads, fill);
  }
  const int64_t blocks = matrix.blocks(), at_once = std::max<int64_t>(PANEL_BYTES / matrix.bytes(), 1);
  const int64_t panels = threads * ((blocks + threads * at_once - 1) / (threads * at_once));
  divided(panels, threads, [&](int64_t panel) {
    meet_tiles(matrix, tiles, count, first, blocks * panel / panels, blocks * (panel + 1) / panels, result);
  });
}

}  // namespace

extern "C" {

void linnet_int4_rows(const float* x, int64_t rows, int64_t inputs, const uint8_t* weights, int64_t group,
                      int64_t outputs, const float* bias, const float* added, float* out, int threads) {
  const Result result{bias, added, out, outputs};
  const Matrix matrix{weights, (inputs + group - 1) / group, group, outputs};
  for (int64_t first = 0; first < rows; first += ROWS_AT_ONCE)
    rows_together(x, first, std::min(ROWS_AT_ONCE, rows - first), inputs, matrix, result, threads);
}

// Largest number of rows for which these products are faster than those with a float32 matrix: without instructions for
// sums of four products of bytes, three instructions are needed for each.
int64_t linnet_max_int4_rows() {
#if defined(LINNET_AVX2) && ((defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__))
  return std::numeric_limits<int64_t>::max();
#else
  return 16;
#endif
}

// Rows `[count, groups * group]` of the matrix that blocks of 4 bits represent, from output `first` on.
void linnet_int4_matrix(const uint8_t* weights, int64_t groups, int64_t group, int64_t first, int64_t count, float* out,
                        int threads) {
  const int64_t bytes = bytes_of_block(groups, group);
  divided(count, threads, [&](int64_t row) {
    const int64_t output = first + row, lane = output % BLOCK;
    const uint8_t* numbers = weights + output / BLOCK * bytes;
    float* place = out + row * groups * group;
    for (int64_t g = 0; g < groups; ++g, numbers += SCALE_BYTES) {
      const auto* scales = reinterpret_cast<const uint16_t*>(numbers + group / RUN * RUN_BYTES);
      const float scale = float_of_bfloat16(scales[lane]);
      for (int64_t i = 0; i < group; i += RUN, numbers += RUN_BYTES, place += RUN) {
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
