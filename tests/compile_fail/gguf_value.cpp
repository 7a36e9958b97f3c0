// A value of a GGUF file asked for as a type that no such value has.
// expect-error: GgufValue::as<T>: T is a number
#include "tiered/io/gguf.hpp"

#ifdef FIXED
double number(tiered::GgufValue const& value) { return value.as<double>(); }
#else
double const* number(tiered::GgufValue const& value) { return value.as<double const*>(); }
#endif
