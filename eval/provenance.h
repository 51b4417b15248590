/* SPDX-License-Identifier: MIT */
/* What a run's results depend on, for the first line of its file. */
#ifndef EVAL_PROVENANCE_H
#define EVAL_PROVENANCE_H

#include "eval/lineup.h"
#include "eval/results.h"
#include "kernels/base/sha256.h"

/* SHA-256 of a file of a model or of data. */
status file_sha256(const char *path, char out[SHA256_HEX], err *e);

/* One SHA-256 over the files of a model folder that decide what it says: *.json, *.safetensors, *.model and
 * merges.txt by name, size and content. Of a file above 64 MiB the content is its first and last 16 MiB and 1,024
 * pieces of 16 KiB evenly between: a changed or retrained model changes it, a deliberate forgery need not. */
status model_sha256(const char *dir, char out[SHA256_HEX], err *e);

/* {"version", "model_sha256", "device", "gemm", "chunk", "seed", "runs": [{"attn", "params", "budget", "kv"}]}: the
 * part of a configuration that all evaluations share. A new object. */
status provenance_config(json_t **out, const cli *c, const engine *g, const lineup *l, err *e);
/* {"model", "backend", "threads", "time"}: what may differ when a run goes on. */
status provenance_started(json_t **out, const engine *g, err *e);

/* The results of a run in the file of -o (else in memory): provenance_config with the members of `own`, an object that
 * is taken (NULL: out of memory), as its configuration. Says on stderr, unless --quiet, how many are there. */
status provenance_open(results **out, const cli *c, const engine *g, const lineup *l, json_t *own,
                       const char *const *identity, err *e);

#endif
