#pragma once
/// Marks a function that runs on the host and, in a CUDA build, on the device too.
#if defined(__CUDACC__)
#define TESSERA_FN __host__ __device__
#else
#define TESSERA_FN
#endif
