//! What operators order, and what they are told.

use serde::{Deserialize, Serialize};

use crate::data_keys::DataKeysInfo;
use crate::fleet::{
    DriveInfo, Evacuation, FabricLeg, LostFile, NodeInfo, Rebuild, Removal, RiskReport, Unreachable,
};
use crate::history::History;
use crate::join_token::JoinTokenInfo;
use crate::measures::Measures;
use crate::operator::{
    AccessKey, CatalogPage, CatalogPromotion, CatalogStatus, LevelStatus, StopVerdict, VolumeProtection,
};
use crate::outage::Outages;
use crate::people::{AccountInfo, People, PeopleChange};
use crate::qos::{QosInfo, QosReport, QosRequest, QosSeen, QosShare};
use crate::tiers::{TierOrder, TierReport};
use crate::volume::{VolumeInfo, VolumeOptions};

/// What an operator asks of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Where the catalog is, and who follows it.
    Catalog,
    /// Make this node the one that keeps the catalog.
    CatalogPromote {
        /// Go on although acknowledged changes may be lost.
        accept_loss: bool,
    },
    /// Let a standby of the catalog go for good.
    CatalogDetach {
        /// Its id or its name.
        node: String,
    },
    /// Whether a node can stop without anybody noticing.
    CanStop {
        /// Its id or its name; none for the one that is asked.
        node: Option<String>,
    },
    /// What volumes commit to now, and which files have fewer copies.
    Protection,
    /// Every node, with what it holds.
    Nodes,
    /// Put no new chunks on a node, but read from it.
    Quarantine {
        /// Its id or its name.
        node: String,
        /// Although too few nodes are left for some volumes.
        force: bool,
    },
    /// End a quarantine or an evacuation.
    Rejoin {
        /// Its id or its name.
        node: String,
    },
    /// Bring everything that is not in the lake from a node to others.
    Evacuate {
        /// Its id or its name.
        node: String,
        /// Although too few nodes are left for some volumes.
        force: bool,
    },
    /// How far an evacuation is.
    Evacuation {
        /// Its id or its name.
        node: String,
    },
    /// What would be lost with each node and each cell.
    Risk,
    /// Files that are lost, or will be if nobody comes back.
    Lost,
    /// How far the protection of what lost a copy is.
    Rebuild,
    /// Every drive.
    Drives {
        /// Only of this node, by its id or its name.
        node: Option<String>,
    },
    /// Put a drive into service.
    DriveAdd {
        /// The node's id or name.
        node: String,
        /// Where it is on that node.
        path: String,
        /// Bytes of the ring if it has to be made.
        size_bytes: Option<u64>,
    },
    /// Take a drive out of service once nothing is only there.
    DriveRemove {
        /// The node's id or name.
        node: String,
        /// Its id or its path.
        drive: String,
        /// Although that loses what is only there.
        force: bool,
    },
    /// What would be lost with a drive now.
    DriveLosses {
        /// The node's id or name.
        node: String,
        /// Its id or its path.
        drive: String,
    },
    /// A page of one state of the catalog, for a backup. The node that keeps the catalog answers.
    CatalogRows {
        /// The state to go on with; none begins one. One that is not asked for a while is gone.
        state: Option<u64>,
        /// The rows behind this key; none for the first.
        after: Option<Vec<u8>>,
    },
    /// Replace an access key by a new one of the same rights. The old one works on for a while.
    KeyRotate {
        /// Its public part.
        access_key: String,
        /// How long the old one works on, milliseconds.
        grace_ms: u64,
    },
    /// Revoke every join token, and make a new one.
    JoinTokenRotate,
    /// How well one node reaches another: it sends bytes that the other drops, for a second at most.
    Fabric {
        /// The node that sends, by its id or its name.
        from: String,
        /// The node that receives, by its id or its name.
        to: String,
    },
    /// What a node measured of itself and its parts.
    Measures {
        /// Its id or its name; none for the one that is asked.
        node: Option<String>,
    },
    /// Cordon a drive: no new chunks, and what the lake lacks is brought elsewhere. Or uncordon it.
    DriveCordon {
        /// The node's id or name.
        node: String,
        /// Its id or its path.
        drive: String,
        /// Whether it is cordoned from now on.
        cordoned: bool,
    },
    /// What somebody wrote down for the whole cluster under a name.
    Note {
        /// Its name.
        name: String,
    },
    /// Add a line to a note, for whoever reads it.
    NoteAdd {
        /// Its name.
        name: String,
        /// What is added.
        line: String,
    },
    /// Make a token that lets nodes join.
    JoinTokenCreate {
        /// How long it works, milliseconds.
        ttl_ms: u64,
        /// How many nodes it lets join.
        uses: u32,
    },
    /// Every token that lets nodes join, or did not long ago.
    JoinTokens,
    /// Let no more nodes join by a token.
    JoinTokenRevoke {
        /// Its id; none for all of them.
        id: Option<String>,
    },
    /// Nodes that others cannot reach, and who tried.
    Unreachable,
    /// Remove a node for good: a live one once it is empty, a lost one once what it held is accounted for. Goes as far as it
    /// can now, and the nodes go on by themselves; asked again, it tells how far it is.
    NodeRemove {
        /// Its id or its name.
        node: String,
        /// Although too few nodes are left for some volumes.
        force: bool,
        /// Although files are lost with it.
        accept_loss: bool,
    },
    /// What does not answer, and what helps; asks nobody.
    Outages,
    /// What was, as figures over time.
    History {
        /// Of this node, by its id or its name; none for all that answer soon.
        node: Option<String>,
        /// The first moment, milliseconds since 1970.
        since_ms: u64,
        /// Time between two points.
        every_ms: u64,
    },
    /// How far removals of nodes are; changes nothing.
    Removals {
        /// Of this node, by its id or its name, also after it; none for all that are under way.
        node: Option<String>,
    },
    /// The level of the cluster, and what keeps it from rising.
    Level,
    /// Keep the level from rising by itself, or let it.
    LevelHold {
        /// Whether it stays as it is.
        held: bool,
    },
    /// Make a volume whose bytes are encrypted on drives.
    EncryptedVolume {
        /// Its name.
        name: String,
        /// What else it wants.
        options: VolumeOptions,
    },
    /// The data keys of every encrypted volume.
    DataKeys,
    /// Make a new data key, which encrypts what is written to a volume from now on.
    DataKeyRotate {
        /// The volume.
        volume: String,
    },
    /// Destroy the data keys of a volume: what they encrypted cannot be read again.
    DataKeyDestroy {
        /// The volume.
        volume: String,
    },
    /// Every tenant, project and user.
    People,
    /// Change one of them.
    PeopleChange(PeopleChange),
    /// What every tenant, project and user has and may have.
    Accounts,
    /// Make an access key that works for so long; none for as long as it is there.
    KeyCreate {
        /// The key.
        key: AccessKey,
        /// How long it works.
        lifetime_ms: Option<u64>,
    },
    /// When access keys stop to work.
    KeyTimes,
    /// Policies of admission, and how they fare.
    Qos,
    /// Promise and allow something to somebody's work.
    QosSet(Box<QosRequest>),
    /// End a policy.
    QosUnset {
        /// Its id.
        id: String,
    },
    /// What a node sees of admission: asked by the node that divides promises.
    QosSeen,
    /// What of the policies is a node's: told by the node that divides promises.
    QosShares(Vec<QosShare>),
    /// About lakes with names, and what moves between lakes.
    Tiers(TierOrder),
}

/// What became of an [`Order`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Report {
    /// It is done.
    Done,
    /// Of [`Order::Catalog`].
    Catalog(CatalogStatus),
    /// Of [`Order::CatalogPromote`].
    Promoted(CatalogPromotion),
    /// Of [`Order::CanStop`].
    CanStop(StopVerdict),
    /// Of [`Order::Protection`].
    Protection(Vec<VolumeProtection>),
    /// Of [`Order::Nodes`].
    Nodes(Vec<NodeInfo>),
    /// Of [`Order::Evacuate`] and [`Order::Evacuation`].
    Evacuation(Evacuation),
    /// Of [`Order::Risk`].
    Risk(RiskReport),
    /// Of [`Order::Lost`] and [`Order::DriveLosses`].
    Lost(Vec<LostFile>),
    /// Of [`Order::Rebuild`].
    Rebuild(Rebuild),
    /// Of [`Order::Drives`], and the drive that an order was about.
    Drives(Vec<DriveInfo>),
    /// Of [`Order::CatalogRows`].
    CatalogRows(CatalogPage),
    /// Of [`Order::KeyRotate`]: the new one.
    Key(AccessKey),
    /// Of [`Order::JoinTokenRotate`]: the new one.
    JoinToken(String),
    /// Of [`Order::Fabric`].
    Fabric(FabricLeg),
    /// Of [`Order::Measures`].
    Measures(Box<Measures>),
    /// Of [`Order::Note`]; none if there is none.
    Note(Option<String>),
    /// Of [`Order::JoinTokenCreate`].
    JoinTokenMade {
        /// The token itself; nobody can tell it again.
        token: String,
        /// What is known of it.
        info: JoinTokenInfo,
    },
    /// Of [`Order::JoinTokens`], and of [`Order::JoinTokenRevoke`] those that are revoked by it.
    JoinTokens(Vec<JoinTokenInfo>),
    /// Of [`Order::Unreachable`].
    Unreachable(Vec<Unreachable>),
    /// Of [`Order::NodeRemove`].
    Removal(Box<Removal>),
    /// Of [`Order::Outages`].
    Outages(Outages),
    /// Of [`Order::History`].
    History(Box<History>),
    /// Of [`Order::Removals`].
    Removals(Vec<Removal>),
    /// Of [`Order::Level`] and [`Order::LevelHold`].
    Level(LevelStatus),
    /// Of [`Order::EncryptedVolume`].
    Volume(Box<VolumeInfo>),
    /// Of [`Order::DataKeys`], and the volume that an order was about.
    DataKeys(Vec<DataKeysInfo>),
    /// Of [`Order::People`].
    People(People),
    /// Of [`Order::Accounts`].
    Accounts(Vec<AccountInfo>),
    /// Of [`Order::KeyTimes`]: public parts of the keys that stop to work, and when, milliseconds since 1970.
    KeyTimes(Vec<(String, u64)>),
    /// Of [`Order::Qos`].
    Qos(Box<QosReport>),
    /// Of [`Order::QosSet`].
    QosPolicy(Box<QosInfo>),
    /// Of [`Order::QosSeen`].
    QosSeen(QosSeen),
    /// Of [`Order::Tiers`].
    Tiers(TierReport),
}

impl Order {
    /// True if it changes nothing.
    pub fn only_reads(&self) -> bool {
        match self {
            Order::Tiers(order) => order.only_reads(),
            Order::Catalog
            | Order::CanStop { .. }
            | Order::Protection
            | Order::Nodes
            | Order::Evacuation { .. }
            | Order::Risk
            | Order::Lost
            | Order::Rebuild
            | Order::Drives { .. }
            | Order::CatalogRows { .. }
            | Order::Fabric { .. }
            | Order::Measures { .. }
            | Order::Note { .. }
            | Order::JoinTokens
            | Order::Unreachable
            | Order::Outages
            | Order::History { .. }
            | Order::Removals { .. }
            | Order::Level
            | Order::DataKeys
            | Order::People
            | Order::Accounts
            | Order::KeyTimes
            | Order::Qos
            | Order::QosSeen
            | Order::DriveLosses { .. } => true,
            Order::CatalogPromote { .. }
            | Order::CatalogDetach { .. }
            | Order::Quarantine { .. }
            | Order::Rejoin { .. }
            | Order::Evacuate { .. }
            | Order::DriveAdd { .. }
            | Order::DriveCordon { .. }
            | Order::LevelHold { .. }
            | Order::EncryptedVolume { .. }
            | Order::DataKeyRotate { .. }
            | Order::DataKeyDestroy { .. }
            | Order::PeopleChange(_)
            | Order::NoteAdd { .. }
            | Order::KeyRotate { .. }
            | Order::KeyCreate { .. }
            | Order::JoinTokenRotate
            | Order::JoinTokenCreate { .. }
            | Order::JoinTokenRevoke { .. }
            | Order::NodeRemove { .. }
            | Order::QosSet(_)
            | Order::QosUnset { .. }
            | Order::QosShares(_)
            | Order::DriveRemove { .. } => false,
        }
    }
}
