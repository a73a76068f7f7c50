// Every kernel of a code object.
#include "aiter_exact.hip"
#include "attention.hip"
#include "pingpong.hip"
#include "pingpong_skip.hip"
#include "varlen.hip"
