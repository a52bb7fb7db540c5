// mtmd, and the one figure that its header does not tell: the width of what a projector makes.
//
// mtmd compares it with the model's, unless only the vocabulary was loaded, as here.

#include "mtmd.cpp"

int projector_width(const mtmd_context * context) {
    return context->ctx_v ? clip_n_mmproj_embd(context->ctx_v) : 0;
}
