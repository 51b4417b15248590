/* SPDX-License-Identifier: MIT */
/* Vendor libraries opened at run time. */
#ifndef KERNELS_CUDA_LIBRARY_H
#define KERNELS_CUDA_LIBRARY_H

#ifdef __cplusplus
extern "C"
#endif
    /* Opens STEM.so.VERSION, or else another version from `oldest` to `newest`, newest first. Searches the loader's
     * path, then $CUDA_HOME, $CUDA_PATH, $VIRTUAL_ENV and $CONDA_PREFIX, the prefixes of the folders in $PATH (where
     * pip puts PyTorch's copies), and /usr/local/cuda. The handle is for dlsym and dlclose. Returns NULL if nothing was
     * found. */
    void *
    cuda_library(const char *stem, int version, int oldest, int newest);

#endif
