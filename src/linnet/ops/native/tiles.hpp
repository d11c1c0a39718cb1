// Products of several rows with matrices of 16 and 8 bits: tiles of rows are multiplied with the same weights together,
// which are read and unpacked once for all of them.
//
// A tile holds its rows in the order of reading: for each run of inputs one or two vectors of every row.

#pragma once

#include <vector>

#include "wide.hpp"

namespace {

// The last weights of an output, fewer than a vector, padded with zeros.
template <typename Number>
inline Whole rest_of(const Number* weights, int64_t count) {
  Number rest[sizeof(Whole) / sizeof(Number)] = {};
  std::memcpy(rest, weights, count * sizeof(Number));
  return whole_at(rest);
}

// Weights at even indices are the lower halves of 32 bits, those at odd indices the upper ones.
struct Bfloat16Tile {
  static constexpr int64_t RUN = 2 * WIDE;

  static int64_t numbers(int rows, int64_t inputs) { return (inputs + RUN - 1) / RUN * RUN * rows; }

  static void fill(const float* x, int rows, int64_t inputs, float* tile) {
    for (int r = 0; r < rows; ++r)
      for (int64_t i = 0; i < inputs; ++i) {
        float* const run = tile + (i / RUN * rows + r) * RUN;
        run[i % 2 * WIDE + i % RUN / 2] = x[r * inputs + i];
      }
  }

  template <int rows>
  struct Of {
    static void call(const uint16_t* weights, const float* x, int64_t inputs, float* out) {
      const Whole upper = everywhere(static_cast<int32_t>(0xffff0000u));
      Real even[rows], odd[rows];
      for (int r = 0; r < rows; ++r) even[r] = odd[r] = zero();
      const auto meet = [&](Whole pairs) {
        const Real of_even = as_real(shifted_left(pairs, 16)), of_odd = as_real(both(pairs, upper));
        for (int r = 0; r < rows; ++r) {
          even[r] = with_product(even[r], of_even, real_at(x + r * RUN));
          odd[r] = with_product(odd[r], of_odd, real_at(x + r * RUN + WIDE));
        }
        x += rows * RUN;
      };
      int64_t i = 0;
      for (; i + RUN <= inputs; i += RUN) meet(whole_at(weights + i));
      if (i < inputs) meet(rest_of(weights + i, inputs - i));
      for (int r = 0; r < rows; ++r) out[r] = total_of(sum(even[r], odd[r]));
    }
  };
};

// Digits are made unsigned by adding 64; 64 times the sum of an output's weights is subtracted again.
struct Int8Tile {
  static constexpr int64_t RUN = 4 * WIDE;
  static constexpr int MORE = BASE / 2;

  static int64_t bytes(int rows, int64_t width) { return (width + RUN - 1) / RUN * RUN * 2 * rows; }

  static void fill(const std::vector<Fixed>& fixed, int64_t first, int rows, int64_t width, uint8_t* tile) {
    for (int r = 0; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) {
        uint8_t* const run = tile + (i / RUN * rows + r) * 2 * RUN + i % RUN;
        run[0] = static_cast<uint8_t>(fixed[first + r].high[i] + MORE);
        run[RUN] = static_cast<uint8_t>(fixed[first + r].low[i] + MORE);
      }
  }

  template <int rows>
  struct Of {
    static void call(const int8_t* weights, const uint8_t* x, int64_t width, float* out) {
      Whole high[rows], low[rows], more = nothing();
      for (int r = 0; r < rows; ++r) high[r] = low[r] = nothing();
      const auto meet = [&](Whole numbers) {
        more = with_products(more, every_byte(MORE), numbers);
        for (int r = 0; r < rows; ++r) {
          high[r] = with_products(high[r], whole_at(x + 2 * r * RUN), numbers);
          low[r] = with_products(low[r], whole_at(x + (2 * r + 1) * RUN), numbers);
        }
        x += 2 * rows * RUN;
      };
      int64_t i = 0;
      for (; i + RUN <= width; i += RUN) meet(whole_at(weights + i));
      if (i < width) meet(rest_of(weights + i, width - i));
      const int32_t added = total_of(more);
      for (int r = 0; r < rows; ++r) {
        const auto whole = [&](Whole digits) { return static_cast<float>(total_of(digits) - added); };
        out[r] = whole(high[r]) * BASE + whole(low[r]);
      }
    }
  };
};

// Calls `work(first, count)` for each tile: `TILE` rows each, and the remainder.
template <typename Work>
void each_tile(int64_t rows, const Work& work) {
  for (int64_t first = 0; first < rows; first += TILE)
    work(first, static_cast<int>(std::min<int64_t>(TILE, rows - first)));
}

inline void bfloat16_rows_by_tiles(const float* x, int64_t rows, int64_t inputs, const uint16_t* weights,
                                   const Result& result, int threads) {
  thread_local std::vector<float> kept;
  const int64_t of_tile = Bfloat16Tile::numbers(TILE, inputs);
  kept.assign((rows + TILE - 1) / TILE * of_tile, 0.0f);
  float* const tiles = kept.data();
  each_tile(rows, [&](int64_t first, int count) {
    Bfloat16Tile::fill(x + first * inputs, count, inputs, tiles + first / TILE * of_tile);
  });
  divided(result.outputs, threads, [&](int64_t o) {
    each_tile(rows, [&](int64_t first, int count) {
      float out[TILE];
      for_rows<Bfloat16Tile::Of>(count)(weights + o * inputs, tiles + first / TILE * of_tile, inputs, out);
      for (int r = 0; r < count; ++r) result.set(first + r, o, out[r]);
    });
  });
}

inline void int8_rows_by_tiles(const std::vector<Fixed>& fixed, int64_t rows, const int8_t* weights, int64_t width,
                               const uint16_t* scales, const Result& result, int threads) {
  thread_local std::vector<uint8_t> kept;
  const int64_t of_tile = Int8Tile::bytes(TILE, width);
  kept.resize((rows + TILE - 1) / TILE * of_tile);
  uint8_t* const tiles = kept.data();
  each_tile(rows, [&](int64_t first, int count) {
    Int8Tile::fill(fixed, first, count, width, tiles + first / TILE * of_tile);
  });
  divided(result.outputs, threads, [&](int64_t o) {
    const float scale = float_of_bfloat16(scales[o]);
    each_tile(rows, [&](int64_t first, int count) {
      float out[TILE];
      for_rows<Int8Tile::Of>(count)(weights + o * width, tiles + first / TILE * of_tile, width, out);
      for (int r = 0; r < count; ++r) result.set(first + r, o, out[r] * (fixed[first + r].step * scale));
    });
  });
}

}  // namespace
