#pragma once
#include "io/deck/deck.hpp"

namespace tessera {

/// Prints on stderr what a sound deck asks for in vain, a line each. That is keys without effect, values that others
/// contradict, and a run directory other than the one in which the deck lies. Local.
void print_advice(const Deck& deck);

}  // namespace tessera
