// Every kernel of a code object.
#include "attention.hip"
#include "merge.hip"
#include "pingpong.hip"
#include "pingpong_skip.hip"
#include "skip_pieces.hip"
#include "varlen.hip"

#include "aiter_exact.hip"
