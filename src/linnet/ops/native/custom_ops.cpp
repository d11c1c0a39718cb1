// Functions of this library as operators of PyTorch, in the form in which packages of AOTInductor call them: with handles
// of tensors, and a result that is not 0 after an error. `ops.native.custom_ops` describes them.
//
// PyTorch's stable C interface is reached through pointers (`linnet_set_pytorch`), so that this library needs neither its
// headers nor its libraries.

#include <algorithm>
#include <vector>

#include "functions.hpp"
#include "vectors.hpp"

struct AtenTensorOpaque;

namespace {

using Tensor = AtenTensorOpaque*;
using Error = int32_t;

struct PyTorch {
  Error (*get_data_ptr)(Tensor, void**);
  Error (*get_dtype)(Tensor, int32_t*);
  Error (*get_size)(Tensor, int64_t dim, int64_t*);
  Error (*get_stride)(Tensor, int64_t dim, int64_t*);
  Error (*empty_strided)(int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                         int32_t device, Tensor*);
  int32_t float32, bfloat16, cpu;
} pytorch;

constexpr int64_t BYTES_PER_THREAD = 1 << 16;  // as in `ops.native.gemv` and `ops.native.attention`
constexpr int64_t KEY_BYTES_PER_THREAD = 1 << 15;

template <typename T>
T* data(Tensor tensor) {
  void* found = nullptr;
  pytorch.get_data_ptr(tensor, &found);
  return static_cast<T*>(found);
}

const float* bias_of(const Tensor* bias) { return bias ? data<float>(*bias) : nullptr; }

int64_t size(Tensor tensor, int64_t dim) {
  int64_t found = 0;
  pytorch.get_size(tensor, dim, &found);
  return found;
}

int64_t stride(Tensor tensor, int64_t dim) {
  int64_t found = 0;
  pytorch.get_stride(tensor, dim, &found);
  return found;
}

int threads_for(int64_t bytes, int64_t per_thread) {
  return static_cast<int>(std::min<int64_t>(omp_get_max_threads(), 1 + bytes / per_thread));
}

// `work` fills a new matrix of as many rows as `x`; weight_bytes: those that each row reads.
template <typename Work>
Error rows_of(Tensor x, int64_t outputs, int64_t weight_bytes, Tensor* made, const Work& work) {
  const int64_t rows = size(x, 0), sizes[] = {rows, outputs}, strides[] = {outputs, 1};
  if (Error error = pytorch.empty_strided(2, sizes, strides, pytorch.float32, pytorch.cpu, 0, made)) return error;
  const int threads = threads_for(rows * weight_bytes, BYTES_PER_THREAD);
  if (rows > 0) work(data<const float>(x), rows, size(x, 1), data<float>(*made), threads);
  return 0;
}

}  // namespace

extern "C" {

void linnet_set_pytorch(void* get_data_ptr, void* get_dtype, void* get_size, void* get_stride, void* empty_strided,
                        int32_t float32, int32_t bfloat16, int32_t cpu) {
  pytorch.get_data_ptr = reinterpret_cast<decltype(pytorch.get_data_ptr)>(get_data_ptr);
  pytorch.get_dtype = reinterpret_cast<decltype(pytorch.get_dtype)>(get_dtype);
  pytorch.get_size = reinterpret_cast<decltype(pytorch.get_size)>(get_size);
  pytorch.get_stride = reinterpret_cast<decltype(pytorch.get_stride)>(get_stride);
  pytorch.empty_strided = reinterpret_cast<decltype(pytorch.empty_strided)>(empty_strided);
  pytorch.float32 = float32;
  pytorch.bfloat16 = bfloat16;
  pytorch.cpu = cpu;
}

Error aoti_torch_cpu_linnet_float32_linear(Tensor x, Tensor weight, Tensor* bias, Tensor* made) {
  const int64_t outputs = size(weight, 0), bytes = outputs * size(weight, 1) * static_cast<int64_t>(sizeof(float));
  return rows_of(x, outputs, bytes, made, [&](const float* in, int64_t rows, int64_t inputs, float* out, int threads) {
    linnet_float32_rows(in, rows, inputs, data<float>(weight), outputs, bias_of(bias), nullptr, out, threads);
  });
}

Error aoti_torch_cpu_linnet_bfloat16_linear(Tensor x, Tensor weight, Tensor* bias, Tensor* made) {
  const int64_t outputs = size(weight, 0), bytes = outputs * size(weight, 1) * static_cast<int64_t>(sizeof(uint16_t));
  return rows_of(x, outputs, bytes, made, [&](const float* in, int64_t rows, int64_t inputs, float* out, int threads) {
    linnet_bfloat16_rows(in, rows, inputs, data<uint16_t>(weight), outputs, bias_of(bias), nullptr, out, threads);
  });
}

Error aoti_torch_cpu_linnet_int8_linear(Tensor x, Tensor numbers, Tensor scales, Tensor* bias, Tensor* made) {
  const int64_t outputs = size(numbers, 0), width = size(numbers, 1), bytes = outputs * width;
  return rows_of(x, outputs, bytes, made, [&](const float* in, int64_t rows, int64_t inputs, float* out, int threads) {
    linnet_int8_rows(in, rows, inputs, data<int8_t>(numbers), width, data<uint16_t>(scales), outputs, bias_of(bias),
                     nullptr, out, threads);
  });
}

Error aoti_torch_cpu_linnet_int4_linear(Tensor x, Tensor blocks, int64_t group, int64_t outputs, Tensor* bias,
                                        Tensor* made) {
  const int64_t bytes = size(blocks, 0) * size(blocks, 1) * size(blocks, 2);
  return rows_of(x, outputs, bytes, made, [&](const float* in, int64_t rows, int64_t inputs, float* out, int threads) {
    linnet_int4_rows(in, rows, inputs, data<uint8_t>(blocks), group, outputs, bias_of(bias), nullptr, out, threads);
  });
}

Error aoti_torch_cpu_linnet_attention_past(Tensor queries, Tensor keys, Tensor values, Tensor last, double factor,
                                           Tensor* made) {
  const int64_t streams = size(queries, 0), heads = size(queries, 1), shared = size(queries, 2), width = size(queries, 3);
  const int64_t sizes[] = {streams, heads, shared, width};
  const int64_t strides[] = {heads * shared * width, shared * width, width, 1};
  const int64_t *const lasts = data<int64_t>(last), apart = stride(last, 0);
  std::vector<int64_t> seen(streams);
  for (int64_t b = 0; b < streams; ++b) seen[b] = 1 + lasts[b * apart];
  const int64_t longest = streams ? *std::max_element(seen.begin(), seen.end()) : 0;
  if (longest > size(keys, 2)) return 1;
  if (Error error = pytorch.empty_strided(4, sizes, strides, pytorch.float32, pytorch.cpu, 0, made)) return error;
  int32_t dtype = 0;
  pytorch.get_dtype(keys, &dtype);
  const bool narrow = dtype == pytorch.bfloat16;
  const int64_t bytes = 2 * streams * longest * heads * width * static_cast<int64_t>(narrow ? 2 : 4);
  const int threads = static_cast<int>(std::min<int64_t>(streams * heads, threads_for(bytes, KEY_BYTES_PER_THREAD)));
  linnet_attention_past(data<float>(queries), data<void>(keys), data<void>(values), streams, heads, shared,
                        stride(keys, 0), stride(keys, 1), width, seen.data(), static_cast<float>(factor),
                        data<float>(*made), narrow, threads);
  return 0;
}

}  // extern "C"
