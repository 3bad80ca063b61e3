#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "io/hdf5/parallel.hpp"
#include "kernels/base/tensor.hpp"

namespace tessera::hdf5 {

/// Prepares the HDF5 library; must be called before any other function of it, and may be called repeatedly. Turns off
/// its printing of errors, and its clean-up at exit, which would crash if a full disk kept a file from being closed.
void prepare_library();

/// The version of the library found at run time, such as "1.10.8".
std::string version();

/// Owner of one HDF5 object, which its destructor closes. hid_t has 64 bits; HDF5's header is not included here.
class Object {
 public:
  using Id = std::int64_t;
  using Close = int (*)(Id);

  Object() = default;
  Object(Id id, Close closer) : id_(id), close_(closer) {}
  Object(Object&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Object() { close(); }

  Id id() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now; returns whether that succeeded.
  bool close();

 private:
  Id id_ = -1;
  Close close_ = nullptr;
};

/// The types that datasets may have.
inline constexpr DType stored_types[] = {DType::f32, DType::bf16, DType::u8};

/// A dataset: its elements lie in one stretch of the file, row-major.
struct Dataset {
  Shape shape;
  DType type = DType::f32;
  std::int64_t offset = 0;  ///< bytes from the start of the file
};

/// A range of a dataset's elements, numbered in row-major order.
struct ElementRange {
  std::int64_t first, count;
};

/// The value of an attribute.
using Value = std::variant<std::string, std::int64_t, std::uint64_t, double, std::vector<std::int64_t>>;

/// A column of a table: numbers (u64), or a text that null bytes fill up. A row is its columns, packed.
struct Column {
  enum class Kind { numbers, text };
  const char* name;
  Kind kind;
  std::size_t bytes;
};
using Columns = std::vector<Column>;
std::size_t row_bytes(const Columns& columns);

/// An HDF5 file that HDF5 1.10 and later can read, with checksums over all metadata. Failures throw, with path and
/// HDF5's own message, Error{environment} if the file is being written or a system call has failed (unreadable()), else
/// Error{file}. Collective or Local as Parallel says.
class File {
 public:
  /// Creates a file, by this process alone. Once a dataset has its place, other processes may write there.
  static File create(const std::filesystem::path& path, const Parallel* parallel = nullptr);
  /// Opens a file for reading, by this process alone or by all ranks.
  static File open(const std::filesystem::path& path, const Parallel* parallel = nullptr);
  /// Opens an existing file for writing. If at most `datasets` datasets are added to an empty file, its metadata is one
  /// piece at the front, with the payload behind it.
  static File open_to_write(const std::filesystem::path& path, const Parallel& parallel, std::int64_t datasets = 0);

  /// Creates the group at `path` and its parents, if they are missing.
  void add_groups(const std::string& path);
  /// Creates a contiguous dataset: its place in the file is allocated at once, and nothing is written there.
  Dataset add_dataset(const std::string& path, const Shape& shape, DType type);
  /// Writes elements of a dataset from `memory`, or reads them into it: at most 1 GiB; may be none.
  void transfer(Parallel::Transfer transfer, const std::string& path, const ElementRange& range, void* memory) const;
  /// Adds an attribute: a Value, or anything that converts to text.
  template <class T>
  void set(const std::string& object, const char* name, const T& value) {
    if constexpr (std::is_convertible_v<T, std::string_view>)
      add_attribute(object, name, std::string(std::string_view(value)));
    else
      add_attribute(object, name, value);
  }
  /// Creates a table of `rows` rows without content; write_table writes them.
  void add_table(const std::string& path, const Columns& columns, std::size_t rows);
  void write_table(const std::string& path, const Columns& columns, const std::vector<char>& rows);
  /// Creates a dataset of `count` numbers without content; write_numbers writes them.
  void add_numbers(const std::string& path, std::size_t count);
  void write_numbers(const std::string& path, const std::vector<std::uint64_t>& numbers);
  void close();
  ~File();
  File(File&&) = default;
  File& operator=(File&&) = default;

  bool has(const std::string& path) const;
  bool has(const std::string& object, const char* attribute) const;
  std::int64_t links(const std::string& group) const;  ///< number of a group's members
  /// Paths of all datasets, without the first '/'; each object once.
  std::vector<std::string> datasets() const;
  std::vector<std::int64_t> dims(const std::string& path) const;  ///< of a dataset of any kind
  Dataset dataset(const std::string& path) const;
  /// Offset of a contiguous dataset of any shape and type, in bytes from the start of the file.
  std::int64_t offset_of(const std::string& path) const;
  template <class T>
  T get(const std::string& object, const char* name) const {
    Value value = attribute(object, name);
    if (T* const held = std::get_if<T>(&value)) return std::move(*held);
    throw unfit(object + "@" + name + " has another type");
  }
  std::string text(const std::string& object, const char* name) const { return get<std::string>(object, name); }
  /// Reads the rows of a table. `expected` says which columns one with so many columns and bytes a row must have; a
  /// table with others is refused as "no `what`".
  std::vector<char> table(const std::string& path, const char* what,
                          const std::function<Columns(std::size_t columns, std::size_t bytes)>& expected) const;
  std::vector<std::uint64_t> numbers(const std::string& path) const;

  const std::filesystem::path& path() const { return path_; }
  /// An Error{file} that says why this file cannot be read.
  Error unfit(const std::string& why) const { return {Exit::file, path_.string() + ": " + why}; }

 private:
  File(std::filesystem::path path, Exit blame, const Parallel* parallel);
  std::string name() const;  ///< as HDF5's driver takes it
  Object access() const;
  Object access_to_write(std::int64_t datasets) const;
  void take(Object::Id opened, std::string_view otherwise);
  /// Watchdog over a call that may wait for other ranks.
  Control::LibraryCall watched(const char* what) const;
  Error failure(std::string_view doing) const;
  Object::Id checked(Object::Id id, std::string_view doing) const;
  bool yes(int answer, const std::string& about) const;
  std::size_t room(std::int64_t count, std::size_t size) const;
  Object::Id at(const std::string& object) const;
  Object create_dataset(const std::string& path, Object::Id type, const std::vector<std::int64_t>& dims);
  void write_whole(const std::string& path, Object::Id type, const void* data);
  std::vector<char> read_whole(const std::string& path, const char* what,
                               const std::function<Object::Id(Object::Id stored)>& expected) const;
  void add_attribute(const std::string& object, const char* name, const Value& value);
  Value attribute(const std::string& object, const char* name) const;

  std::filesystem::path path_;
  Exit blame_;  ///< exit code of HDF5's failures
  const Parallel* parallel_;
  Object file_;
  Object contiguous_;  ///< creation properties of datasets
  // The object opened last stays open, since calls about one object follow each other.
  mutable std::string open_path_;
  mutable Object open_;
};

}  // namespace tessera::hdf5
