module micabox.example/client

go 1.19
