// Compares the functions of ops/native with their definitions in double; built for several compilers and processors by
// test_build_targets.py, and run under an emulator if need be. Prints what is wrong; the exit code is 1 then.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "functions.hpp"

extern "C" int64_t linnet_function_index(const char* name);
extern "C" void linnet_run(const void* operations, int64_t count, int64_t token, int64_t position, int threads);

namespace {

std::mt19937 generator(0);
int failures = 0;

std::vector<float> normal(size_t count) {
  std::normal_distribution<float> distribution;
  std::vector<float> made(count);
  for (float& x : made) x = distribution(generator);
  return made;
}

uint16_t to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float from_bfloat16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void compare(const char* name, const std::vector<float>& found, const std::vector<double>& expected, double tolerance) {
  double largest = 0.0, error = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::fmax(largest, std::fabs(expected[i]));
    error = std::fmax(error, std::isnan(found[i]) ? INFINITY : std::fabs(found[i] - expected[i]));
  }
  if (error <= tolerance * largest) return;
  std::printf("%s is off by %.1e\n", name, error / largest);
  ++failures;
}

// `x W^T + b + added` for rows and a matrix `[outputs, inputs]`.
std::vector<double> product(const std::vector<float>& x, const std::vector<double>& weights, const std::vector<float>& bias,
                            const std::vector<float>& added, int64_t rows, int64_t inputs) {
  const int64_t outputs = static_cast<int64_t>(bias.size());
  std::vector<double> out(rows * outputs);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = static_cast<double>(bias[o]) + added[r * outputs + o];
      for (int64_t i = 0; i < inputs; ++i) sum += static_cast<double>(x[r * inputs + i]) * weights[o * inputs + i];
      out[r * outputs + o] = sum;
    }
  return out;
}

void check_products(int64_t rows, int64_t inputs, int64_t outputs, int threads) {
  const auto x = normal(rows * inputs), bias = normal(outputs), added = normal(rows * outputs);
  std::vector<float> found(rows * outputs);
  std::vector<double> matrix(outputs * inputs);

  const auto weights = normal(outputs * inputs);
  matrix.assign(weights.begin(), weights.end());
  linnet_float32_rows(x.data(), rows, inputs, weights.data(), outputs, bias.data(), added.data(), found.data(), threads);
  compare("float32", found, product(x, matrix, bias, added, rows, inputs), 1e-5);

  std::vector<uint16_t> narrow(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) matrix[i] = from_bfloat16(narrow[i] = to_bfloat16(weights[i]));
  linnet_bfloat16_rows(x.data(), rows, inputs, narrow.data(), outputs, bias.data(), added.data(), found.data(), threads);
  compare("bfloat16", found, product(x, matrix, bias, added, rows, inputs), 1e-5);

  const int64_t width = (inputs + 31) / 32 * 32;
  std::uniform_int_distribution<int> bytes(-127, 127), pairs(0, 255);
  std::vector<int8_t> numbers(outputs * width, 0);
  std::vector<uint16_t> scales(outputs);
  for (int64_t o = 0; o < outputs; ++o) {
    scales[o] = to_bfloat16(0.5f + static_cast<float>(o) / 10);
    for (int64_t i = 0; i < inputs; ++i)
      matrix[o * inputs + i] = static_cast<double>(from_bfloat16(scales[o])) * (numbers[o * width + i] = bytes(generator));
  }
  linnet_int8_rows(x.data(), rows, inputs, numbers.data(), width, scales.data(), outputs, bias.data(), added.data(),
                   found.data(), threads);
  compare("int8", found, product(x, matrix, bias, added, rows, inputs), 1e-3);

  // Blocks of 16 outputs; of each group of 32 inputs the numbers, then the scales (`ops.native.gemv.to_int4_blocks`).
  const int64_t group = 32, groups = width / group, block = groups * (16 * group / 2 + 32), blocks = (outputs + 15) / 16;
  std::vector<uint8_t> packed(blocks * block);
  for (int64_t n = 0; n < blocks; ++n)
    for (int64_t g = 0; g < groups; ++g) {
      uint8_t* place = packed.data() + n * block + g * (16 * group / 2 + 32);
      for (int64_t i = 0; i < 16 * group / 2; ++i) place[i] = static_cast<uint8_t>(pairs(generator));
      for (int64_t lane = 0; lane < 16; ++lane) {
        const uint16_t scale = to_bfloat16(0.1f * static_cast<float>(lane + g + 1));
        std::memcpy(place + 16 * group / 2 + 2 * lane, &scale, 2);
        for (int64_t i = 0; i < group && n * 16 + lane < outputs; ++i) {
          const uint8_t pair = place[i / 8 * 64 + 4 * lane + i % 4];
          const int number = (i % 8 < 4 ? pair & 15 : pair >> 4) - 8;
          if (g * group + i < inputs) matrix[(n * 16 + lane) * inputs + g * group + i] = number * from_bfloat16(scale);
        }
      }
    }
  linnet_int4_rows(x.data(), rows, inputs, packed.data(), group, outputs, bias.data(), added.data(), found.data(), threads);
  compare("int4", found, product(x, matrix, bias, added, rows, inputs), 1e-3);
  std::vector<float> rebuilt(outputs * width), cut(outputs * inputs);
  linnet_int4_matrix(packed.data(), groups, group, 0, outputs, rebuilt.data(), threads);
  for (int64_t o = 0; o < outputs; ++o)
    std::memcpy(cut.data() + o * inputs, rebuilt.data() + o * width, inputs * sizeof(float));
  compare("int4's matrix", cut, matrix, 1e-6);
}

void check_attention(bool bfloat16, int threads) {
  const int64_t heads = 2, shared = 3, capacity = 40, width = 37, position = 28;
  const auto queries = normal(heads * shared * width), key = normal(heads * width), value = normal(heads * width);
  auto keys = normal(heads * capacity * width), values = normal(heads * capacity * width);
  std::vector<uint16_t> narrow_keys(keys.size()), narrow_values(values.size());
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < width; ++i) {
      keys[(h * capacity + position) * width + i] = key[h * width + i];
      values[(h * capacity + position) * width + i] = value[h * width + i];
    }
  if (bfloat16)
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = from_bfloat16(narrow_keys[i] = to_bfloat16(keys[i]));
      values[i] = from_bfloat16(narrow_values[i] = to_bfloat16(values[i]));
    }
  std::vector<double> expected(heads * shared * width, 0.0);
  for (int64_t p = 0; p < heads * shared; ++p) {
    std::vector<double> weights(position + 1);
    double total = 0.0;
    for (int64_t s = 0; s <= position; ++s) {
      double score = 0.0;
      for (int64_t i = 0; i < width; ++i)
        score += static_cast<double>(queries[p * width + i]) * keys[(p / shared * capacity + s) * width + i];
      total += weights[s] = std::exp(0.2 * score);
    }
    for (int64_t s = 0; s <= position; ++s)
      for (int64_t i = 0; i < width; ++i)
        expected[p * width + i] += weights[s] / total * values[(p / shared * capacity + s) * width + i];
  }
  std::vector<float> found(expected.size());
  void* const stored_keys = bfloat16 ? static_cast<void*>(narrow_keys.data()) : keys.data();
  void* const stored_values = bfloat16 ? static_cast<void*>(narrow_values.data()) : values.data();
  linnet_attention_row(queries.data(), key.data(), value.data(), stored_keys, stored_values, heads, shared, capacity, width,
                       position, 0.2f, found.data(), bfloat16, threads);
  compare(bfloat16 ? "attention in bfloat16" : "attention", found, expected, 1e-5);
}

void check_elementwise(int64_t width, int threads) {
  const auto x = normal(2 * width), gains = normal(width);
  std::vector<float> found(width);
  std::vector<double> expected(width);
  double squares = 0.0;
  for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
  for (int64_t i = 0; i < width; ++i) expected[i] = x[i] / std::sqrt(squares / width + 1e-5) * gains[i];
  linnet_rms_norm(x.data(), gains.data(), 1, width, 1e-5f, found.data(), threads);
  compare("RMS norm", found, expected, 1e-5);

  const char* names[] = {"silu", "gelu", "gelu_tanh", "relu", "relu_squared"};
  for (int kind = 0; kind < 5; ++kind) {
    for (int64_t i = 0; i < width; ++i) {
      const double v = x[i];
      const double each[] = {v / (1 + std::exp(-v)), 0.5 * v * (1 + std::erf(v / std::sqrt(2.0))),
                             0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))),
                             std::fmax(v, 0.0), std::fmax(v, 0.0) * v};
      expected[i] = each[kind];
    }
    linnet_activation(x.data(), width, kind, found.data(), threads);
    compare(names[kind], found, expected, 1e-5);
    for (int64_t i = 0; i < width; ++i) expected[i] *= x[width + i];
    linnet_glu(x.data(), width, kind, found.data(), threads);
    compare("gate", found, expected, 1e-5);
  }
}

// Two operations in one call, run by several threads: a row of a table by token, times a factor.
void check_program(int threads) {
  struct Argument { int64_t value, by_token, by_position; };
  struct Operation { int64_t function; Argument arguments[14]; } operations[2] = {};
  const int64_t width = 21, token = 3;
  auto table = normal(5 * width);
  std::vector<float> row(width), found(width);
  const auto address = [](const void* place) { return reinterpret_cast<int64_t>(place); };
  operations[0] = {linnet_function_index("linnet_float32_matrix"),
                   {{address(table.data()), 4 * width, 0}, {width, 0, 0}, {address(row.data()), 0, 0}, {threads, 0, 0}}};
  const float factor = 0.5f;
  int64_t bits = 0;
  std::memcpy(&bits, &factor, sizeof factor);
  operations[1] = {linnet_function_index("linnet_scale_add"),
                   {{address(row.data()), 0, 0}, {bits, 0, 0}, {0, 0, 0}, {width, 0, 0}, {address(found.data()), 0, 0},
                    {threads, 0, 0}}};
  linnet_run(operations, 2, token, 0, threads);
  std::vector<double> expected(width);
  for (int64_t i = 0; i < width; ++i) expected[i] = 0.5 * table[token * width + i];
  compare("program", found, expected, 1e-6);
}

}  // namespace

int main() {
  for (int threads : {1, 2}) {
    for (int64_t rows : {1, 2, 11}) check_products(rows, 70, 21, threads);
    check_attention(false, threads);
    check_attention(true, threads);
    check_elementwise(45, threads);
    check_program(threads);
  }
  return failures > 0;
}
