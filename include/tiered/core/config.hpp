/// Every macro of the library. [device-visible]
#pragma once

#ifndef TIERED_HAS_CUDA
#define TIERED_HAS_CUDA 0  // set to 1 by the target tiered::cuda_kernels; always defined, so test it with #if
#endif

// Set to 1 for the decoders of image files whose libraries are there, where those are compiled: in tiered::cpu, or with tiered/cpu.hpp.
#ifndef TIERED_HAS_JPEG
#define TIERED_HAS_JPEG 0
#endif
#ifndef TIERED_HAS_PNG
#define TIERED_HAS_PNG 0
#endif
#ifndef TIERED_HAS_WEBP
#define TIERED_HAS_WEBP 0
#endif

#if defined(__CUDACC__)
#define TIERED_HD __host__ __device__
#else
#define TIERED_HD
#endif

// Of a kernel of blocks of up to `threads`: at most n registers a thread. Before CUDA 12.4 only as launch bounds can say it.
#if defined(__CUDACC_VER_MAJOR__) && (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 4))
#define TIERED_MOST_REGISTERS(n, threads) __maxnreg__(n)
#else
#define TIERED_MOST_REGISTERS(n, threads) __launch_bounds__(threads, 1)
#endif

// An internal invariant, checked in builds without NDEBUG. Callers' mistakes throw Error instead: see expects().
#if defined(NDEBUG) || defined(__CUDA_ARCH__)
#define TIERED_ASSERT(condition) ((void)0)
#else
#include <cassert>
#define TIERED_ASSERT(condition) assert(condition)
#endif

// As for images above, of video files: FFmpeg's headers are there.
#ifndef TIERED_HAS_FFMPEG
#define TIERED_HAS_FFMPEG 0
#endif
