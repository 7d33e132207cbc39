// Shared by every header of cuda_src/math: they compile for the host and for the device.
#pragma once

#ifdef __CUDACC__
#define SPX_HD __host__ __device__ __forceinline__
#else
#define SPX_HD inline
#endif

// A host file that is compiled once per vector width names the width here, so that the linker
// never mixes two builds of one template.
#ifndef SPX_ISA
#define SPX_ISA base
#endif

#define SPX_NAMESPACE_BEGIN namespace spx { inline namespace SPX_ISA {
#define SPX_NAMESPACE_END } }
