#pragma once
/// Marks a function that runs on the host and, in a CUDA build, on the device too.
#if defined(__CUDACC__)
#define TESSERA_FN __host__ __device__
#else
#define TESSERA_FN
#endif

/// Marks a function that runs on the device alone in a CUDA build: it calls what only a device has.
#if defined(__CUDACC__)
#define TESSERA_DEVICE_FN __device__
#else
#define TESSERA_DEVICE_FN
#endif
