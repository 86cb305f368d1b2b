module example.com/hook-plugin

go 1.22

require (
	github.com/koordinator-sh/koordinator v1.6.0
	google.golang.org/grpc v1.57.1
)

require (
	github.com/golang/protobuf v1.5.3 // indirect
	golang.org/x/net v0.19.0 // indirect
	golang.org/x/sys v0.15.0 // indirect
	golang.org/x/text v0.14.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20230731190214-cbb8c96f2d6d // indirect
	google.golang.org/protobuf v1.31.0 // indirect
)
