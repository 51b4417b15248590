/* SPDX-License-Identifier: MIT */
/* Configuration of a run: everything that its results depend on. It is the first line of the results file. */
#ifndef EVAL_PROVENANCE_H
#define EVAL_PROVENANCE_H

#include "cli/lineup.h"
#include "cli/report.h"
#include "eval/results.h"
#include "kernels/base/sha256.h"

/* Writes the SHA-256 of a file of a model or of data. */
status file_sha256(const char *path, char out[SHA256_HEX], err *e);

/* Writes one SHA-256 over the files that determine a model's output: of a folder *.json, *.safetensors, *.model and
 * merges.txt, else the GGUF files, each with name, size and content. For a file above 64 MiB, the content is its first
 * and last 16 MiB and 1,024 evenly spaced pieces of 16 KiB. A changed or retrained model changes the checksum; a
 * deliberate forgery may not. */
status model_sha256(const model *m, char out[SHA256_HEX], err *e);

/* Opens the results of a run, in the file of -o or in memory. Their configuration has the members that all evaluations
 * share, {"version", "model_sha256", "weights", "device", "backend", "gemm", "chunk", "seed", "runs": [{"attn",
 * "params", "budget", "kv"}]}, and those of `own`. Takes ownership of `own` (NULL: out of memory). {"model", "threads",
 * "time"} may differ in a resumed run. Prints the number of existing results on stderr, unless --quiet. */
status provenance_open(results **out, const result_options *o, uint64_t seed, const engine *g, const lineup *l,
                       json_t *own, const char *const *identity, err *e);
/* Ends an evaluation with status st, which it returns. After a signal --json FILE receives the results so far, in the
 * form of -o, with "interrupted": true. r NULL: no results; *e then names the missing file. */
status provenance_end(const results *r, const result_options *o, const engine *g, status st, err *e);
/* Prints where the same command resumes, if the results are in the file of -o. */
void provenance_note_rest(const results *r, const result_options *o, const char *from);

#endif
