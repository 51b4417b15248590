/* SPDX-License-Identifier: MIT */
/* A pushdown machine over the bytes and special tokens of a text. Its state is a set of configurations, each with a
 * stack of frames. Frames are immutable and shared, so that copying a configuration takes back what follows. Private to
 * grammar/ and its tests. */
#ifndef GRAMMAR_MACHINE_H
#define GRAMMAR_MACHINE_H

#include "grammar/program.h"

enum {
    SET_MAX = 64,      /* configurations of a state; further ones are dropped */
    SYMBOL_TOKEN = 256 /* a symbol is a byte, or SYMBOL_TOKEN + id of a special token */
};

/* An open array, object, sequence or repetition, to which a value returns. */
typedef struct {
    uint32_t up; /* frame below; 0: none */
    int32_t node;
    uint32_t count; /* items, additional members or repetitions so far */
    uint16_t at;    /* next property or part */
    uint16_t depth; /* open arrays and objects up to this one */
} frame;

/* A position in a node. state: of the node's kind. text: position within a string or number. count: code points of a
 * string, items and members as in a frame. Strings between literals are a range [low, high) of the sorted list, of
 * which `depth` bytes match; high 0: none. */
typedef struct {
    int32_t node;
    uint32_t up;
    uint8_t state, text;
    uint16_t aux;
    uint32_t count;
    union {
        uint64_t value; /* digits of a number, without the point */
        struct {
            uint16_t low, high;
            uint32_t depth;
        } range;
    };
} config;

typedef struct {
    const grammar *g;
    frame *frames; /* frame 0 is unused */
    size_t n_frames, cap_frames;
    bool failed; /* out of memory */
} machine;

/* A set of configurations under construction, with room for SET_MAX. */
typedef struct {
    config *at;
    size_t n;
} config_set;

/* Adds the configurations before the first symbol. */
void machine_start(machine *m, config_set *to);
/* Adds the configurations after c and a symbol. */
void machine_step(machine *m, const config *c, int32_t symbol, config_set *to);
/* True if the text may end after c. */
bool machine_may_end(const machine *m, const config *c);
/* True within a string, before a character, where any character may follow; *room: number of code points that fit. */
bool machine_in_string(const machine *m, const config *c, uint32_t *room);
/* Returns the node of free text in which c is, or NULL; *matched: bytes of its marker that precede. */
const node *machine_in_free(const machine *m, const config *c, uint32_t *matched);
/* Removes the frames that no configuration of `sets` refers to. */
void machine_compact(machine *m, config_set *sets, size_t n_sets);

#endif
