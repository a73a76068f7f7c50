// What ROCm refuses or misreads in a code object. Sources: ROCR-Runtime's loader (LoadCodeObject and the
// code under it), LLVM's "User Guide for AMDGPU Backend" and MetadataVerifier, and the ELF-64 format.
// Every refusal names the field, its value and what is allowed.
#pragma once

#include "code_object.hpp"

namespace gfx942 {

// Throws HipError(hipErrorInvalidImage) unless `kept`: "code object: FIELD is VALUE; allowed: ALLOWED".
void require(bool kept, const std::string& field, const std::string& value, const std::string& allowed);
void require(bool kept, const std::string& field, uint64_t value, const std::string& allowed);

// Header flags, program and section headers, dynamic table, symbols, hash tables, relocations.
// Throws HipError: hipErrorNoBinaryForGpu for features that the device doesn't run with.
void check_elf(const ElfFile& elf);

// The MessagePack note: keys, types, enumerations, and what the numbers mean to each other.
void check_metadata(const ElfFile& elf);

// The 64 bytes of a kernel's descriptor, against themselves and against the kernel's metadata.
void check_descriptor(const uint8_t* descriptor, const KernelMetadata& metadata, int code_object_version);

}  // namespace gfx942
