// Tools' schemas as llama.cpp's grammars can say them.

#pragma once

#include "json.h"

// Returns a copy of `tools` whose schemas can all be converted. A part of a schema that cannot be is
// left out, so that its value is bound by what remains. `open` gets an object for each such part:
// the tool's name, the path of the schema that had it, and its keyword.
common_json convertible(const common_json & tools, common_json & open);
