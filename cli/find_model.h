/* SPDX-License-Identifier: MIT */
/* Searches for named models in the folders of this and other programs. */
#ifndef CLI_FIND_MODEL_H
#define CLI_FIND_MODEL_H

#include "kernels/base/err.h"

/* Returns $XDG_CACHE_HOME/kvasir or ~/.cache/kvasir, freed with mem_free; NULL if neither is known. Ignores a path that
 * is not absolute, as the XDG base directory specification requires. */
char *cli_cache_folder(void);
/* Returns $XDG_STATE_HOME/kvasir or ~/.local/state/kvasir in the same way. */
char *cli_state_folder(void);

/* Finds the file or folder of a model NAME, OWNER/NAME or (Ollama) NAME:TAG that is no path. Searches read-only: models
 * of scripts/get_model, and the caches of Hugging Face, LM Studio and Ollama. *path is freed with mem_free. Errors:
 * ST_IO if there is no match; ST_USAGE lists several matches. */
status cli_find_model(char **path, const char *name, err *e);
/* Finds the GGUF file of a folder without config.json; *path is NULL if there is none. Errors: as above. */
status cli_find_gguf(char **path, const char *dir, err *e);

#endif
