//! Machines made of small files: a healthy one in which nothing is found, the same with one fault planted at a time, and
//! some that people really have.

mod damage;
mod plans;
mod planted;
mod tree;
mod whole;
