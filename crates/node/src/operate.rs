//! What operators order: about the catalog, and about nodes that are to stop or to go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stoker_cluster::CatalogHost;
use stoker_format::{NodeId, VersionId};
use stoker_schema::rows::{DirtyRow, NodeState, RowValue, keys};
use stoker_store::{
    CatalogStatus, ErrorKind, JOIN_TOKEN_TTL_MS_DEFAULT, Order, Report, Result, StandbyInfo, StopVerdict,
    StoreError, VolumeProtection, name_ids,
};

use crate::core::Core;
use crate::node::Node;
use crate::volumes::Volume;

impl Node {
    /// Carries an order out; what goes wrong is told with the names of nodes, not their ids.
    pub(crate) async fn carry_out(&self, order: Order) -> Result<Report> {
        let report = self.carry_out_as(order).await;
        report.map_err(|fault| {
            let view = self.core.cell.view();
            let name = |id: &str| {
                id.parse().ok().and_then(|id| view.member(id)).map(|member| member.row.name.clone())
            };
            StoreError { message: name_ids(&fault.message, name).into_owned(), ..fault }
        })
    }

    async fn carry_out_as(&self, order: Order) -> Result<Report> {
        match order {
            Order::Catalog => Ok(Report::Catalog(self.catalog_status().await?)),
            Order::CatalogPromote { accept_loss } => {
                Ok(Report::Promoted(self.the_catalog_host()?.promote(accept_loss).await?))
            }
            Order::CatalogDetach { node } => {
                let node = self.core.cell.named(&node)?;
                self.the_catalog_host()?.detach(node).await?;
                Ok(Report::Done)
            }
            Order::CanStop { node } => {
                let node = node.map_or(Ok(self.core.node), |node| self.core.cell.named(&node))?;
                self.can_stop(node).await.map(Report::CanStop)
            }
            Order::Protection => self.core.protection_view().await.map(Report::Protection),
            Order::Outages => Ok(Report::Outages(self.outages())),
            Order::CatalogRows { state, after } => {
                let own = self.catalog_host().and_then(|host| host.own_catalog());
                // One that was promoted while it ran still asks as it did before.
                let catalog = own.as_ref().unwrap_or(&self.core.catalog);
                let (snapshots, cluster) = (&self.core.snapshots, &self.core.cluster);
                let page = snapshots.page(&**catalog, cluster, state, after.as_deref()).await;
                page.map(Report::CatalogRows).map_err(|fault| self.where_catalog(fault))
            }
            Order::KeyCreate { key, lifetime_ms } => {
                self.core.key_create(key, lifetime_ms).await.map(Report::Key)
            }
            Order::KeyTimes => self.core.key_times().await.map(Report::KeyTimes),
            Order::KeyRotate { access_key, grace_ms } => {
                self.core.key_rotate(&access_key, grace_ms).await.map(Report::Key)
            }
            Order::JoinTokenRotate => {
                self.members().join_token_revoke(None).await?;
                let (token, _) = self.members().join_token_create(JOIN_TOKEN_TTL_MS_DEFAULT, 1).await?;
                Ok(Report::JoinToken(token))
            }
            Order::JoinTokenCreate { ttl_ms, uses } => {
                let (token, info) = self.members().join_token_create(ttl_ms, uses).await?;
                Ok(Report::JoinTokenMade { token, info })
            }
            Order::NodeRemove { node, force, accept_loss } => {
                self.node_remove(&node, force, accept_loss).await.map(|told| Report::Removal(Box::new(told)))
            }
            Order::Removals { node: None } => self.removals().await.map(Report::Removals),
            Order::Removals { node: Some(node) } => {
                self.removal_of(&node).await.map(|told| Report::Removals(told.into_iter().collect()))
            }
            Order::Unreachable => Ok(Report::Unreachable(self.members().unreachable())),
            Order::JoinTokens => self.members().join_tokens().await.map(Report::JoinTokens),
            Order::JoinTokenRevoke { id } => {
                self.members().join_token_revoke(id.as_deref()).await.map(Report::JoinTokens)
            }
            order => self.core.carry_out(order).await,
        }
    }

    /// Says which node to ask, if that is what is wrong.
    fn where_catalog(&self, fault: StoreError) -> StoreError {
        match self.catalog_host().map(|host| host.holder()) {
            Some(holder) if fault.kind == ErrorKind::Invalid && holder != self.core.node => {
                StoreError { message: format!("{} (node {holder})", fault.message), ..fault }
            }
            _ => fault,
        }
    }

    pub(crate) fn the_catalog_host(&self) -> Result<Arc<CatalogHost>> {
        self.catalog_host().ok_or_else(|| {
            let message =
                "no node of this cluster keeps the catalog, it is in a database; see to its standbys there";
            StoreError::new(ErrorKind::Invalid, message)
        })
    }

    async fn catalog_status(&self) -> Result<CatalogStatus> {
        if let Some(host) = self.catalog_host() {
            return Ok(host.status().await);
        }
        let pulse = &self.core.catalog_times.pulse;
        let (seq, trouble) = tokio::select! {
            biased;
            seq = self.core.catalog.seq() => match seq {
                Ok(seq) => (seq, None),
                Err(fault) => (0, Some(fault.message)),
            },
            () = pulse.until_silent() => {
                let said = pulse.silence().and_then(|silence| silence.last_error);
                (0, Some(said.unwrap_or_else(|| "no answer".to_owned())))
            }
        };
        Ok(CatalogStatus {
            engine: self.catalog().describe(),
            holder: None,
            epoch: String::new(),
            seq,
            stalled: false,
            alone: false,
            standbys: Vec::new(),
            trouble,
        })
    }

    /// Why a node should not stop now, if it should not.
    async fn can_stop(&self, node: NodeId) -> Result<StopVerdict> {
        let core = &self.core;
        let view = core.cell.view();
        let name = |node: NodeId| match view.member(node) {
            Some(member) if !member.row.name.is_empty() => format!("{} ({node})", member.row.name),
            _ => node.to_string(),
        };
        let mut reasons = Vec::new();
        let others: Vec<NodeId> = view.nodes().filter(|other| *other != node).collect();
        let has_clients = |node: &NodeId| !view.is_witness(*node);
        if has_clients(&node) && !others.iter().any(has_clients) {
            reasons.push(match others.is_empty() {
                true => "it is the only node; clients have nowhere else to go".to_owned(),
                false => "it is the only node that is no witness; clients have nowhere else to go".to_owned(),
            });
        }
        for other in &others {
            match view.member(*other).map(|member| member.row.state) {
                Some(NodeState::Up) if core.cell.is_suspect(*other) => {
                    reasons.push(format!("node {} does not answer", name(*other)));
                }
                Some(NodeState::Leaving) => reasons.push(format!("node {} is stopping", name(*other))),
                Some(NodeState::Down) => reasons.push(format!("node {} is down", name(*other))),
                _ => {}
            }
        }
        let lonely = core.only_on(node, &others).await?;
        if lonely > 0 && !others.is_empty() {
            reasons.push(format!("{lonely} files that are not in the lake yet are on no other node"));
        }
        if let Some(host) = self.catalog_host() {
            let status = host.status().await;
            let is_holder = status.holder == Some(node.to_string());
            let other = |standby: &&StandbyInfo| standby.node != node.to_string();
            let knows_others = status.standbys.iter().any(|standby| other(&standby));
            let has_others_in_sync = status.standbys.iter().filter(other).any(|standby| standby.in_sync);
            if let Some(trouble) = status.trouble {
                reasons.push(format!("the catalog does not answer: {trouble}"));
            } else if status.stalled {
                reasons.push("the catalog acknowledges nothing, because too few standbys answer".to_owned());
            } else if is_holder && !has_others_in_sync && !others.is_empty() {
                reasons.push("it keeps the catalog, and no other node has all of it".to_owned());
            } else if !is_holder && !has_others_in_sync && knows_others {
                // Commits would wait for whichever of them is back first.
                reasons.push("the other nodes that follow the catalog do not have all of it yet".to_owned());
            }
        }
        let row = view.member(node).map(|member| member.row.name.clone()).unwrap_or_default();
        Ok(StopVerdict { node: node.to_string(), name: row, reasons })
    }
}

impl Core {
    /// What concerns nodes and drives.
    async fn carry_out(self: &Arc<Core>, order: Order) -> Result<Report> {
        match order {
            Order::Nodes => self.nodes_view().await.map(Report::Nodes),
            Order::Quarantine { node, force } => {
                self.quarantine(self.cell.named(&node)?, force).await?;
                Ok(Report::Done)
            }
            Order::Rejoin { node } => {
                self.rejoin(self.cell.named(&node)?).await?;
                Ok(Report::Done)
            }
            Order::Evacuate { node, force } => {
                self.evacuate(self.cell.named(&node)?, force).await.map(Report::Evacuation)
            }
            Order::Evacuation { node } => {
                self.evacuation(self.cell.named(&node)?).await.map(Report::Evacuation)
            }
            Order::Risk => self.risk_view().await.map(Report::Risk),
            Order::Lost => self.lost_files().await.map(Report::Lost),
            Order::Rebuild => self.rebuild_view().await.map(Report::Rebuild),
            Order::Fabric { from, to } => self.fabric(&from, &to).await.map(Report::Fabric),
            Order::Drives { node } => {
                let only = node.map(|node| self.cell.named(&node)).transpose()?;
                self.drives_view(only).await.map(Report::Drives)
            }
            Order::Note { name } => {
                let note = self.note(&name).await?;
                let text = note.map(|note| String::from_utf8_lossy(&note.head).into_owned());
                Ok(Report::Note(text))
            }
            Order::NoteAdd { name, line } => {
                self.add_to_note(&name, &line).await?;
                Ok(Report::Done)
            }
            Order::History { node: None, since_ms, every_ms } => self.history(since_ms, every_ms).await,
            Order::History { node: Some(node), since_ms, every_ms } => {
                self.history_of(&node, since_ms, every_ms).await
            }
            Order::Level => self.cell.level_status().await.map(Report::Level),
            Order::People => self.people().await.map(Report::People),
            Order::Accounts => self.accounts().await.map(Report::Accounts),
            Order::PeopleChange(change) => self.change_people(change).await,
            Order::LevelHold { held } => self.cell.hold_level(held).await.map(Report::Level),
            Order::EncryptedVolume { name, options } => {
                let info = self.create_encrypted(&name, options).await?;
                Ok(Report::Volume(Box::new(info)))
            }
            Order::Tiers(order) => self.tier_order(order).await.map(Report::Tiers),
            Order::DataKeys => self.data_keys().await.map(Report::DataKeys),
            Order::DataKeyRotate { volume } => {
                self.rotate_data_key(&volume).await.map(|keys| Report::DataKeys(vec![keys]))
            }
            Order::DataKeyDestroy { volume } => {
                self.destroy_data_keys(&volume).await.map(|keys| Report::DataKeys(vec![keys]))
            }
            Order::Qos => self.qos_report().await.map(|report| Report::Qos(Box::new(report))),
            Order::QosSet(request) => {
                self.qos_set(*request).await.map(|set| Report::QosPolicy(Box::new(set)))
            }
            Order::QosUnset { id } => self.qos_unset(&id).await.map(|()| Report::Done),
            order @ (Order::DriveAdd { .. }
            | Order::DriveRemove { .. }
            | Order::DriveCordon { .. }
            | Order::DriveLosses { .. }
            | Order::Measures { .. }) => self.order_drive(order).await,
            other => {
                let message = format!("this release does not know what to do: {other:?}");
                Err(StoreError::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// What volumes commit to, and how many of their undrained files are on fewer nodes.
    pub(crate) async fn protection(&self) -> Result<Vec<VolumeProtection>> {
        let mut versions: HashMap<VersionId, (u32, u32)> = HashMap::new();
        for node in self.cell.view().nodes().collect::<Vec<_>>() {
            let mut here: HashSet<VersionId> = HashSet::new();
            self.each(keys::dirty_of(node), |row| {
                let dirty = DirtyRow::of(row).map_err(crate::error::catalog)?;
                if let Some(version) = keys::dirty_version(&row.key).filter(|version| here.insert(*version)) {
                    versions.entry(version).or_insert((dirty.volume, 0)).1 += 1;
                }
                Ok(())
            })
            .await?;
        }
        let of = |volume: &Arc<Volume>| {
            let copies = self.class(volume).copies() as u32;
            let below = versions.values().filter(|(id, nodes)| *id == volume.id.0 && *nodes < copies).count();
            VolumeProtection { volume: volume.name.clone(), copies, files_below: below as u64 }
        };
        Ok(self.volumes.all().await?.iter().map(of).collect())
    }

    /// How many versions that are not in the lake are on this node and no other.
    async fn only_on(&self, node: NodeId, others: &[NodeId]) -> Result<usize> {
        let mut versions: HashSet<VersionId> = HashSet::new();
        self.each(keys::dirty_of(node), |row| {
            versions.extend(keys::dirty_version(&row.key));
            Ok(())
        })
        .await?;
        // Who lacks chunks of a version does not have it.
        let mut lacking: HashSet<(VersionId, NodeId)> = HashSet::new();
        self.each(keys::MISSING.to_vec(), |row| {
            lacking.extend(keys::missing_parts(&row.key));
            Ok(())
        })
        .await?;
        for other in others {
            if versions.is_empty() {
                break;
            }
            self.each(keys::dirty_of(*other), |row| {
                if let Some(version) = keys::dirty_version(&row.key)
                    && !lacking.contains(&(version, *other))
                {
                    versions.remove(&version);
                }
                Ok(())
            })
            .await?;
        }
        Ok(versions.len())
    }
}
