#pragma once
#include <cstddef>
#include <utility>
#include <vector>

namespace tessera {

/// A vector indexed by its own index type only: `Id` is a struct with one `int value`, counted from 0.
template <class Id, class Row> class IndexedBy {
 public:
  IndexedBy() = default;
  explicit IndexedBy(int size, const Row& row = Row()) : rows_(static_cast<std::size_t>(size), row) {}

  Row& operator[](Id id) { return rows_[static_cast<std::size_t>(id.value)]; }
  const Row& operator[](Id id) const { return rows_[static_cast<std::size_t>(id.value)]; }
  Id add(Row row) {
    rows_.push_back(std::move(row));
    return {size() - 1};
  }

  int size() const { return static_cast<int>(rows_.size()); }
  bool empty() const { return rows_.empty(); }
  auto begin() { return rows_.begin(); }
  auto end() { return rows_.end(); }
  auto begin() const { return rows_.begin(); }
  auto end() const { return rows_.end(); }
  const std::vector<Row>& rows() const { return rows_; }

  /// Every index, ascending: for (Id id : table.ids()).
  class Ids {
   public:
    struct Iterator {
      int value;
      Id operator*() const { return {value}; }
      Iterator& operator++() { ++value; return *this; }
      bool operator!=(const Iterator& other) const { return value != other.value; }
    };
    explicit Ids(int size) : size_(size) {}
    Iterator begin() const { return {0}; }
    Iterator end() const { return {size_}; }

   private:
    int size_;
  };
  Ids ids() const { return Ids(size()); }

 private:
  std::vector<Row> rows_;
};

}  // namespace tessera
