#pragma once
#include <cstdint>
#include <vector>

#include "io/checkpoint/payload_file.hpp"
#include "io/checkpoint/stored_tensor.hpp"

namespace tessera {

/// What tensors_of() finds, by the table and the places of a file of `bytes` alone: no dataset is opened. True where
/// the structure's digest is the manifest's. Throws where no tensors can be such.
std::vector<StoredTensor> indexed_tensors(const hdf5::File& file, std::int64_t bytes);

/// The digest of all bytes of a file that are no tensor's, as u8 with their places in the file for indices: of whatever
/// HDF5 wrote there, and of the index. Throws Error{file} where they cannot be read.
std::uint64_t structure_digest(const PayloadFile& file, const std::vector<StoredTensor>& tensors);

}  // namespace tessera
