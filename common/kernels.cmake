set(RP_COMMON_KERNEL_SRCS
  dtype.cc strided_layout.cc summary.cc kernels/dispatch.cc
  kernels/crc32.cc kernels/crc32_wide.cc
  kernels/kernels_baseline.cc kernels/kernels_avx2.cc kernels/kernels_avx512.cc)
set(RP_COMMON_KERNEL_TESTS kernels/crc32_test.cc strided_layout_test.cc summary_test.cc)
set(_kernel_flags -O3 -fno-math-errno -ffp-contract=fast -Wno-psabi -Wno-ignored-attributes)
set_source_files_properties(kernels/kernels_baseline.cc PROPERTIES COMPILE_OPTIONS "${_kernel_flags}")
set_source_files_properties(kernels/kernels_avx2.cc PROPERTIES COMPILE_OPTIONS
  "${_kernel_flags};-mavx2;-mfma;-mf16c;-mbmi2")
set_source_files_properties(kernels/kernels_avx512.cc PROPERTIES COMPILE_OPTIONS
  "${_kernel_flags};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx2;-mfma;-mf16c;-mbmi2;-mprefer-vector-width=512")
set_source_files_properties(kernels/crc32_wide.cc PROPERTIES COMPILE_OPTIONS
  "-O3;-mavx512f;-mavx512vl;-mfma;-mpclmul;-mvpclmulqdq")
