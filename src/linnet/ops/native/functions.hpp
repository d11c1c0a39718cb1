// The functions of this library that a program may call (program.cpp). The last argument is the number of threads that
// share the work; within a program its threads do.

#pragma once

#include <cstdint>

extern "C" {

void linnet_float32_rows(const float* x, int64_t rows, int64_t inputs, const float* weights, int64_t outputs,
                         const float* bias, const float* added, float* out, int threads);
void linnet_bfloat16_rows(const float* x, int64_t rows, int64_t inputs, const uint16_t* weights, int64_t outputs,
                          const float* bias, const float* added, float* out, int threads);
void linnet_int8_rows(const float* x, int64_t rows, int64_t inputs, const int8_t* weights, int64_t width,
                      const uint16_t* scales, int64_t outputs, const float* bias, const float* added, float* out,
                      int threads);
void linnet_int4_rows(const float* x, int64_t rows, int64_t inputs, const uint8_t* weights, int64_t group,
                      int64_t outputs, const float* bias, const float* added, float* out, int threads);
void linnet_float32_matrix(const float* weights, int64_t inputs, float* out, int threads);
void linnet_bfloat16_matrix(const uint16_t* weights, int64_t inputs, float* out, int threads);
void linnet_int8_matrix(const int8_t* weights, const uint16_t* scales, int64_t inputs, float* out, int threads);
void linnet_int4_matrix(const uint8_t* weights, int64_t groups, int64_t group, int64_t first, int64_t count, float* out,
                        int threads);
void linnet_attention_row(const float* queries, const float* key, const float* value, void* keys, void* values,
                          int64_t heads, int64_t shared, int64_t capacity, int64_t width, int64_t position,
                          float factor, float* out, int bfloat16, int threads);
void linnet_attention_past(const float* queries, const void* keys, const void* values, int64_t streams, int64_t heads,
                           int64_t shared, int64_t of_stream, int64_t of_head, int64_t width, const int64_t* seen,
                           float factor, float* out, int bfloat16, int threads);
void linnet_apply_operator(const float* queries, const float* operators, int64_t heads, int64_t shared, int64_t width,
                             float* out, int threads);
void linnet_rms_norm(const float* x, const float* gains, int64_t rows, int64_t width, float eps, float* out,
                     int threads);
void linnet_layer_norm(const float* x, const float* gains, const float* biases, int64_t rows, int64_t width, float eps,
                       float* out, int threads);
void linnet_rotate(float* x, int64_t heads, int64_t width, int64_t turned, const float* cosines, const float* sines,
                 int adjacent, int threads);
void linnet_activation(const float* x, int64_t width, int kind, float* out, int threads);
void linnet_glu(const float* joint, int64_t inner, int kind, float* out, int threads);
void linnet_scale_add(const float* x, float factor, const float* added, int64_t width, float* out, int threads);

}  // extern "C"
