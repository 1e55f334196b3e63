//! Parity that ISA-L 2.30 made (`gf_gen_cauchy1_matrix`, `ec_encode_data`): ours is the same.

use stoker_ec::{Codec, Kernel, Scheme};

const LEN: usize = 24;

/// Parity of the first shards of [`data`], in hex.
const VECTORS: &[(usize, usize, &[&str])] = &[
    (1, 1, &["0b795f91c231061bfa0a4d227343b44c649cb31de7ec251e"]),
    (2, 1, &["9b5a447530c1af21933a433f4e10fd4f796db9ee816d69c8"]),
    (
        4,
        2,
        &[
            "46619361e1bda340b435c1033679e01dc278f1fc9dd8dcd9",
            "b42d707d279595167dee9406ccf395765c08aa8606774c1c",
        ],
    ),
    (
        8,
        2,
        &[
            "9716516fac67cec5f0f1031b3561dccac3ccb33c26b707bb",
            "fc7feee18ec110dd0355ae9248335a3309fa96c5b0993cb6",
        ],
    ),
    (
        10,
        3,
        &[
            "bc8ed81a6c7dcbc89c642f8462a6f3181acf3738b7d56c4e",
            "7dc5b0c262eabecda791e8928d9e172404e2dffabd86f61a",
            "06411705231582da5b4fb0b7c6f85adf51977a725f936b70",
        ],
    ),
    (
        14,
        4,
        &[
            "5bd33300831b29a73f6ac2fbd8b24891bf69ba84ea7e1a7c",
            "e0853a5f39832aeb92dc5623d6595a3792bbd6266d176d20",
            "7d0cfa25f555e2d0bad719b4b01da3a47ab10e472d6e7f59",
            "7afa6f4b46d82e678aeb43800c2cd7bbad4ac3ecdf184dbe",
        ],
    ),
    (
        32,
        8,
        &[
            "a80e75db3d9fde592eb2aff8ce51e93a5ffd17ae3e1035ec",
            "cf0a42d5f2ed0a029dcc79496585559ea626fa3751ce88f9",
            "aed4c705176e2bd10f059305121c1999118349cac2f0e5d1",
            "d68cd13a95febc7c87dd169d3004b15634e38b00a1a5e5e1",
            "f96e138afd5f4c631e368051f3b1de0a1b00e592cf0aa4c1",
            "d7f5bc5924d0b9a01dbd45749dc6119d7aed4b46a4aae157",
            "14a4fd3165be36f4fcc38fb172146320622796a9cac23929",
            "210a1e87dc9f32f868a251335dea0c3c4ab7f390f1661bec",
        ],
    ),
];

/// Bytes that the other program made the same way.
fn data(shard: usize) -> Vec<u8> {
    let byte = |at: usize| {
        let mixed = (shard as u32).wrapping_mul(1_000_003).wrapping_add(at as u32 * 7919 + 12345);
        let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x2c1b_3c6d);
        (mixed ^ mixed >> 12) as u8
    };
    (0..LEN).map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn parity_is_that_of_isal() {
    for kernel in Kernel::available() {
        for (k, m, expect) in VECTORS {
            let codec = Codec::with_kernel(Scheme::new(*k, *m).unwrap(), kernel).unwrap();
            let data: Vec<Vec<u8>> = (0..*k).map(data).collect();
            let data: Vec<&[u8]> = data.iter().map(|shard| &shard[..]).collect();
            let mut parity = vec![vec![0xaa; LEN]; *m];
            let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|shard| &mut shard[..]).collect();
            codec.encode(&data, &mut outputs).unwrap();
            let made: Vec<String> = parity.iter().map(|shard| hex(shard)).collect();
            assert_eq!(made, *expect, "{k}+{m} by {kernel}");
        }
    }
}
