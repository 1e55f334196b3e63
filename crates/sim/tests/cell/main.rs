//! The simulated cluster: that it is one history per seed, and stories that must end well whatever the seed.

#![cfg(feature = "cell")]

mod found;
mod scenarios;
mod scene;
mod seeds;
mod vanished;
