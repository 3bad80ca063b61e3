#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "kernels/base/error.hpp"

namespace tessera {

/// Says on stderr, once, that a line (from 1) of a record is no row, and its fate: "passed over". Local.
void tell_of_no_row(const std::filesystem::path& path, std::int64_t line, const std::string& fate);

/// A record of a run in lines of JSON, each with the step that it belongs to, steps ascending. Rank 0 alone writes it.
/// Local.
class RowFile {
 public:
  /// Opens or creates the file, and drops what a run restored at `step` will write again: rows of later steps and an
  /// unfinished last line. Whole lines among them that are no rows are told. Throws Error{environment} with path, cause
  /// and remedy.
  RowFile(const std::filesystem::path& path, std::int64_t step);
  ~RowFile();
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;

  /// One more than the greatest `restart` of its rows (dropped ones included); without rows 0 for a fresh run, else 1.
  std::int64_t restarts() const { return restarts_; }
  /// The newest step that the file had a row of, dropped ones included; 0: none.
  std::int64_t reached() const { return reached_; }

  /// Writes the rows of a step, whole lines, at once. On failure (a full disk) the file keeps earlier rows only, and a
  /// problem (Exit::environment) is returned.
  [[nodiscard]] Problems append(const std::string& lines, std::int64_t step);
  /// Replaces what the last append() wrote, or the last line that the file was opened with, at once and whole. Throws
  /// Error{environment}, and the file keeps it.
  void replace_last(const std::string& lines);

 private:
  std::filesystem::path path_;
  int file_ = -1;
  std::int64_t bytes_ = 0;  // size of the whole rows
  std::int64_t last_ = 0;   // where the last ones begin
  std::int64_t restarts_ = 0, reached_ = 0;
};

}  // namespace tessera
