// Every kernel of a code object.
#include "attention.hip"
#include "merge.hip"
#include "pingpong.hip"
