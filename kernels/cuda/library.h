/* SPDX-License-Identifier: MIT */
/* Vendors' libraries that are opened at run time. */
#ifndef KERNELS_CUDA_LIBRARY_H
#define KERNELS_CUDA_LIBRARY_H

#ifdef __cplusplus
extern "C"
#endif
    /* Opens STEM.so.VERSION, else another version from `oldest` to `newest`, newest first: where the loader looks, in
     * $CUDA_HOME, $VIRTUAL_ENV and the like, beside the programs on $PATH, which is where pip puts PyTorch's copies, in
     * /usr/local/cuda. For dlsym and dlclose; NULL: none is there. */
    void *
    cuda_library(const char *stem, int version, int oldest, int newest);

#endif
