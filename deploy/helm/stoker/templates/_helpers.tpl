{{- define "stoker.labels" -}}
app.kubernetes.io/name: stoker
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "stoker.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "stoker.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The pod of a node. Arguments: root, role (seed or member). */}}
{{- define "stoker.node" -}}
{{- $root := .root -}}
{{- $node := .root.Values.node -}}
metadata:
  labels:
    {{- include "stoker.labels" $root | nindent 4 }}
    app.kubernetes.io/component: node
    stoker.dev/role: {{ .role }}
spec:
  # S3, peers and the console are addresses of the machine: they stay when the pod is made anew, and bytes take no detour.
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  serviceAccountName: {{ $root.Release.Name }}-node
  automountServiceAccountToken: false
  priorityClassName: {{ $node.priorityClassName }}
  terminationGracePeriodSeconds: {{ $node.terminationGracePeriodSeconds }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 4 }}
  {{- end }}
  nodeSelector: {{ toYaml $node.nodeSelector | nindent 4 }}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions:
              - key: kubernetes.io/hostname
                operator: {{ eq .role "seed" | ternary "In" "NotIn" }}
                values: [{{ $node.seed | quote }}]
  {{- with $node.tolerations }}
  tolerations: {{ toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ $node.user }}
    runAsGroup: {{ $node.group }}
    supplementalGroups: {{ toJson $node.supplementalGroups }}
    seccompProfile: { type: {{ $node.seccompProfile }} }
  containers:
    - name: stoker
      {{- include "stoker.image" $root | nindent 6 }}
      args:
        {{- if eq .role "seed" }}
        - up
        {{- else }}
        - join
        - {{ required "node.seedAddress: where the seed is reached by others, HOST:PORT" $node.seedAddress | quote }}
        {{- end }}
        - --dir={{ $node.dir }}
        - --name=$(NODE_NAME)
        - --s3=$(HOST_IP):{{ $node.ports.s3 }}
        - --admin=$(HOST_IP):{{ $node.ports.admin }}
        - --peers=$(HOST_IP):{{ $node.ports.peers }}
        - --memory={{ $node.memory }}
        {{- with $node.lake }}
        - --lake={{ . }}
        {{- end }}
        {{- with $node.ringSize }}
        - --size={{ . }}
        {{- end }}
        {{- range $node.drives }}
        - --drive={{ . }}
        {{- end }}
      env:
        - name: NODE_NAME
          valueFrom: { fieldRef: { fieldPath: spec.nodeName } }
        - name: HOST_IP
          valueFrom: { fieldRef: { fieldPath: status.hostIP } }
        - name: STOKER_DIR
          value: {{ $node.dir }}
        {{- if eq .role "member" }}
        - name: STOKER_JOIN_TOKEN
          valueFrom: { secretKeyRef: { name: {{ $node.joinTokenSecret }}, key: token, optional: true } }
        {{- end }}
        {{- with $node.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $node.lakeSecret }}
      envFrom: [{ secretRef: { name: {{ . }} } }]
      {{- end }}
      ports:
        - { name: s3, containerPort: {{ $node.ports.s3 }}, hostPort: {{ $node.ports.s3 }} }
        - { name: admin, containerPort: {{ $node.ports.admin }}, hostPort: {{ $node.ports.admin }} }
        - { name: peers, containerPort: {{ $node.ports.peers }}, hostPort: {{ $node.ports.peers }} }
        - { name: peers-udp, containerPort: {{ $node.ports.peers }}, hostPort: {{ $node.ports.peers }}, protocol: UDP }
      # Reading large drives takes as long as it takes.
      startupProbe:
        httpGet: { path: /healthz, port: admin }
        periodSeconds: 5
        failureThreshold: 720
      # Only what a restart helps.
      livenessProbe:
        httpGet: { path: /healthz, port: admin }
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      # Takes requests: a rolling update goes on only then.
      readinessProbe:
        httpGet: { path: /readyz, port: admin }
        periodSeconds: 2
        timeoutSeconds: 5
      lifecycle:
        preStop:
          exec:
            command: [/usr/bin/stoker, node, can-stop, --wait={{ $node.canStopWait }}]
      resources:
        requests:
          {{- toYaml $node.resources.requests | nindent 10 }}
          {{- with $node.hugepages2Mi }}
          hugepages-2Mi: {{ . }}
          {{- end }}
        limits:
          {{- toYaml $node.resources.limits | nindent 10 }}
          {{- with $node.hugepages2Mi }}
          hugepages-2Mi: {{ . }}
          {{- end }}
      securityContext: {{ include "stoker.restricted" $root | nindent 8 }}
      volumeMounts:
        - { name: dir, mountPath: {{ $node.dir }} }
        - { name: tmp, mountPath: /tmp }
        {{- range $at, $drive := $node.drives }}
        - { name: drive-{{ $at }}, mountPath: {{ $drive }} }
        {{- end }}
        {{- if $node.hugepages2Mi }}
        - { name: hugepages, mountPath: /dev/hugepages }
        {{- end }}
  volumes:
    # Not made by the kubelet: one that is missing is a machine that is not prepared, or a drive that is not mounted.
    - { name: dir, hostPath: { path: {{ $node.dir }}, type: Directory } }
    - { name: tmp, emptyDir: { sizeLimit: 64Mi } }
    {{- range $at, $drive := $node.drives }}
    - { name: drive-{{ $at }}, hostPath: { path: {{ $drive }}, type: Directory } }
    {{- end }}
    {{- if $node.hugepages2Mi }}
    - { name: hugepages, emptyDir: { medium: HugePages-2Mi } }
    {{- end }}
{{- end }}
