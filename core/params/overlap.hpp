#pragma once
namespace tessera {
/// Whether a collective runs under computation or is waited for where it begins. Changes when, never what.
enum class Overlap : bool { off, on };
}  // namespace tessera
