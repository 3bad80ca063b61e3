#include "io/metrics/tensor_file.hpp"

#include <fmt/format.h>

#include <utility>

namespace tessera {

std::string tensor_file(std::int64_t step) { return fmt::format("tensors_{:08}.h5", step); }

TensorFile::TensorFile(std::filesystem::path path, std::int64_t step)
    : path_(std::move(path)), unfinished_(path_.string() + ".tmp"), file_(hdf5::File::create(unfinished_)) {
  file_.set("/", "step", step);
}

void TensorFile::add(const std::string& name, const Shape& shape, DType type, const std::string& format) {
  const std::string path = "/" + name;
  file_.add_groups(path.substr(0, path.rfind('/')));
  file_.add_dataset(path, shape, type);
  if (!format.empty()) file_.set(path, "format", format);
}

void TensorFile::write(const std::string& name, DType type, std::int64_t first, std::string& bytes) {
  const std::int64_t count = std::ssize(bytes) / size_of(type);
  file_.transfer(hdf5::Parallel::Transfer::write, "/" + name, {first, count}, bytes.data());
}

void TensorFile::close() {
  file_.close();
  std::filesystem::rename(unfinished_, path_);
}

}  // namespace tessera
