#include "pingpong.hpp"
