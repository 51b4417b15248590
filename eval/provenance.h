/* SPDX-License-Identifier: MIT */
/* Everything that the results of a run depend on: the first line of its file. */
#ifndef EVAL_PROVENANCE_H
#define EVAL_PROVENANCE_H

#include "cli/lineup.h"
#include "cli/report.h"
#include "eval/results.h"
#include "kernels/base/sha256.h"

/* SHA-256 of a file of a model or of data. */
status file_sha256(const char *path, char out[SHA256_HEX], err *e);

/* One SHA-256 over the files of a model folder that decide what it says: *.json, *.safetensors, *.model and
 * merges.txt by name, size and content. Of a file above 64 MiB the content is its first and last 16 MiB and 1,024
 * pieces of 16 KiB evenly between: a changed or retrained model changes it, a deliberate forgery need not. */
status model_sha256(const char *dir, char out[SHA256_HEX], err *e);

/* The results of a run in the file of -o (else in memory). Their configuration is what all evaluations share
 * {"version", "model_sha256", "weights", "device", "backend", "gemm", "chunk", "seed", "runs": [{"attn", "params",
 * "budget", "kv"}]} with the members of `own`, an object that is taken (NULL: out of memory); what may differ when the
 * run goes on is
 * {"model", "threads", "time"}. Says on stderr, unless --quiet, how many results are there. */
status provenance_open(results **out, const result_options *o, uint64_t seed, const engine *g, const lineup *l,
                       json_t *own, const char *const *identity, err *e);
/* Prints where the same command goes on, if the results are in the file of -o. */
void provenance_note_rest(const results *r, const result_options *o, const char *from);

#endif
